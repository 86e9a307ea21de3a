# Wrapper of a job that reports over the network, run on its first node. It starts the command, ends
# it at its time limit, and reports its start and end. The preceding lines of the script define the
# job (see job_script.py) and the functions of tasks.sh.
_ens_limited=0 _ens_forces= _ens_warns=_ens_send SECONDS=0
# Slurm's name of a node need not be its host name.
_ens_node=${SLURMD_NODENAME:-$HOSTNAME}

# An attempt to submit that was given up must not run if the queue accepted it after all, nor a job
# that counts as lost. The exit code (VOIDED in network_reports.py) shows that nothing was run.
{ [ -e "$_ens_dir/void/$_ens_batch" ] || [ -e "$_ens_dir/void/$_ens_job" ]; } && exit 122

if [ -n "$_ens_messages" ]; then
    exec 2>/dev/null
    _ens_kept+=("$_ens_messages")
fi

# Sends _ENS_LINE to a host and port, and waits for the answer. Exit code 7: this bash has no
# /dev/tcp. Runs in a separate process; data is in variables, because arguments are public.
_ens_talk='
if { exec 9<>"/dev/tcp/$1/$2"; } 2>/dev/null; then
    printf "%s\n" "$_ENS_LINE" >&9 && IFS= read -r -t 5 answer <&9 && [ "$answer" = ok ]
    exit
fi
case $( { : <>"/dev/tcp/$1/$2"; } 2>&1 ) in *"No such file"*) exit 7 ;; *) exit 1 ;; esac
'
_ens_talk_python='
import os, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as s:
    s.sendall(os.environb[b"_ENS_LINE"] + b"\n")
    sys.exit(s.makefile("rb").readline() != b"ok\n")
'
# A connection may hang for minutes. That is fine for the start, which is reported in the background,
# and a short job tries the same addresses at its end. Otherwise there is a time limit.
_ens_say() {
    if [ "$_ens_limited" = 0 ]; then
        ( set -- "$1" "$2"; eval "$_ens_talk" )
    else
        BASH_ENV= _ENS_LINE=$_ENS_LINE timeout -k 1 6 bash -c "$_ens_talk" - "$1" "$2"
    fi
    case $? in
    0) return 0 ;;
    7 | 127) ;;
    *) return 1 ;;
    esac
    _ENS_LINE=$_ENS_LINE timeout -k 1 6 python3 -c "$_ens_talk_python" "$1" "$2" && return 0
    [ "$(printf '%s\n' "$_ENS_LINE" | timeout -k 1 6 nc -w 5 "$1" "$2")" = ok ]
}
# Sends words about the job to the controller. Fails if it does not answer "ok".
_ens_reach() {
    local _ENS_LINE="ensemble1 $_ens_token $_ens_job $_ens_id $_ens_life $*"
    local port=$_ens_port hosts=$_ens_hosts host
    # Another controller may have resumed the run.
    [ -r "$_ens_dir/address" ] && read -r port hosts <"$_ens_dir/address"
    for host in $hosts; do
        _ens_say "$host" "$port" && return 0
    done
    return 1
}
_ens_tell() {
    [ "$_ens_limited" = 2 ] || ! _ens_reach "$@" || return 0
    printf '%s\n' "ensemble1 $_ens_token $_ens_job $_ens_id $_ens_life $*" \
        >>"$_ens_dir/reports/$_ens_job.$_ens_id"
}

# An error before the command can start.
_ens_fail() {
    _ens_now
    _ens_limited=1
    _ens_tell fail "$1" "$_ens_time" "$_ens_node" "$2"
    exit "${3:-1}"
}

# Sends a signal to the command's processes. A launcher does not pass all signals on to its tasks;
# the queue does.
_ens_send() {
    if [ -n "$_ens_relay" ]; then eval "$_ens_relay"; else _ens_signal "$1"; fi
}

# Returns 0 if the kernel has killed a process of this job for lack of memory, by the counters of the
# job's own control groups. The command may have ended without a failure nevertheless.
_ens_lacked_memory() {
    local line path root file word count
    [ -n "$_ens_cgroup" ] || return 1
    while IFS= read -r line; do
        case $line in
            *:memory:*) root=/sys/fs/cgroup/memory file=memory.oom_control ;;
            0::*) root=/sys/fs/cgroup file=memory.events ;;
            *) continue ;;
        esac
        path=${line#*:*:}/
        while [ "${path/"$_ens_cgroup"/}" != "$path" ]; do
            [ ! -r "$root$path$file" ] || while read -r word count; do
                [ "$word" != oom_kill ] || [ "$count" = 0 ] || return 0
            done <"$root$path$file"
            path=${path%/*/}/
        done
    done </proc/self/cgroup
    return 1
}

# A queue may restart a job that must not be restarted: its first report stands. But if a node could
# not start the job, the queue counts that as a life too. Only the controller knows that nothing ran.
_ens_again() {
    local _ens_limited=1 tries
    for tries in 1 2 3; do
        _ens_reach again && return 0
        sleep 1
    done
    return 1
}
if [ "$_ens_life" != 0 ] && [ "$_ens_requeue" = 0 ] && ! _ens_again; then
    _ens_fail requeued "$_ens_queue restarted it, but its group does not set 'requeue': nothing was run" 125
fi

_ens_enter
trap '_ens_stop stopped' TERM
trap '_ens_stop timeout' VTALRM
for _ens_name in HUP INT QUIT USR1 USR2; do
    trap "_ens_signal $_ens_name" $_ens_name
done
# The run's own signals come as other numbers, because the queue also sends the usual ones.
for _ens_name in INT:2 QUIT:3 USR1:10 USR2:12 TERM:15; do
    trap "_ens_send ${_ens_name%:*}" RTMIN+${_ens_name#*:}
done
_ens_now
_ens_t0=$_ens_time
_ens_start "${_ens_env[@]}" "${_ens_launch[@]}" "$@"
exec 6>&- 7>&- 9>&-
set -m
_ens_tell start "$_ens_t0" "$_ens_node" &
_ens_told=$!
set +m
[ "$_ens_limit" = 0 ] || _ens_aside _ens_time_limit
_ens_wait
_ens_now
# A queue signals one process after another. So the command may have ended before our signal comes,
# or may even have taken its child's death for a success. So the wrapper waits for 100 ms;
# if the command has succeeded within 2 s, for 20 ms; within 50 ms, not at all, since nobody ends a
# job so early.
if [ "$_ens_why" = - ]; then
    if [ "$_ens_rc" != 0 ] || [ "$SECONDS" -ge 2 ]; then
        sleep 0.1
    elif [ $((${_ens_time/./} - ${_ens_t0/./})) -gt 50000 ]; then
        sleep 0.02
    fi
fi
_ens_clear
[ "$_ens_why" != - ] || ! _ens_lacked_memory || _ens_why=memory
[ "$SECONDS" -lt 20 ] || _ens_limited=1
if kill -0 "$_ens_told" 2>/dev/null; then
    # The start is still being reported: give up after some seconds, the controller is unreachable.
    _ens_limited=1
    [ "$SECONDS" -lt 5 ] || { kill -KILL -- "-$_ens_told"; _ens_limited=2; }
fi
if [ "$_ens_why" = - ] && [ "$_ens_requeue" = 1 ]; then
    case " $_ens_restart_codes " in *" $_ens_rc "*) _ens_why=requeue _ens_restart_codes= ;; esac
fi
_ens_tell end "$_ens_rc" "$_ens_why" "$_ens_t0" "$_ens_time" "$_ens_node"
_ens_exit "$_ens_rc"
