# Wrapper of a job that reports over the network, run on its first node. It starts the command, ends
# it at its time limit, and reports its start and end. The preceding lines of the script define the
# job; see job_script.py.
exec </dev/null
_ens_limited=0 _ens_why=- _ens_rc=0 _ens_t0=0 _ens_pid= _ens_early= _ens_clock= _ens_force= _ens_gone=
SECONDS=0

# An attempt to submit that was given up must not run if the queue accepted it after all, nor a job
# that counts as lost. The exit code (VOIDED in report_spool.py) shows that nothing was run.
{ [ -e "$_ens_dir/void/$_ens_batch" ] || [ -e "$_ens_dir/void/$_ens_job" ]; } && exit 122

if [ -n "$_ens_messages" ]; then
    exec 2>/dev/null
    _ens_kept+=("$_ens_messages")
fi
_ens_now() {
    if [ -n "$EPOCHREALTIME" ]; then _ens_time=${EPOCHREALTIME/[!0-9]/.}; else _ens_time=$(date +%s.%N); fi
}

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
_ens_tell() {
    local _ENS_LINE="ensemble1 $_ens_token $_ens_job $_ens_id $_ens_life $*"
    local port=$_ens_port hosts=$_ens_hosts host
    # Another controller may have resumed the run.
    [ -r "$_ens_dir/address" ] && read -r port hosts <"$_ens_dir/address"
    if [ "$_ens_limited" != 2 ]; then
        for host in $hosts; do
            _ens_say "$host" "$port" && return 0
        done
    fi
    printf '%s\n' "$_ENS_LINE" >>"$_ens_dir/reports/$_ens_job.$_ens_id"
}

# An error before the command can start.
_ens_fail() {
    _ens_now
    _ens_limited=1
    _ens_tell fail "$1" "$_ens_time" "$HOSTNAME" "$2"
    exit "${3:-1}"
}

# Ends the command, for the queue (which uses force itself) or for the clock (which does not).
# It gets SIGTERM only once: many programs abort at a second one. A signal that comes before the
# command's id is known is acted on when it is.
_ens_stop() {
    [ -n "$_ens_pid" ] || { _ens_early=$1; return; }
    if [ "$_ens_why" = - ]; then
        _ens_why=$1
        kill -TERM -- "-$_ens_pid"
    fi
    kill -CONT -- "-$_ens_pid"
    if [ "$1" != stopped ] && [ -z "$_ens_force" ]; then
        set -m
        { sleep "$_ens_grace"; kill -KILL -- "-$_ens_pid"; } &
        _ens_force=$!
        set +m
    fi
}

# Sends a signal to the command's processes. A launcher does not pass all signals on to its tasks;
# the queue does.
_ens_send() {
    if [ -n "$_ens_relay" ]; then eval "$_ens_relay"; else kill "-$1" -- "-$_ens_pid"; fi
}

# A queue may restart a job that must not be restarted: its first report stands.
if [ "$_ens_life" != 0 ] && [ "$_ens_requeue" = 0 ]; then
    _ens_fail requeued "$_ens_queue started it again, which its group does not ask for (requeue): nothing was run" 125
fi

if [ -n "$_ens_workdir" ]; then
    [ -d "$_ens_workdir" ] || mkdir -p -- "$_ens_workdir" || _ens_fail workdir "cannot create the workdir $_ens_workdir on $HOSTNAME"
    cd -- "$_ens_workdir" || _ens_fail workdir "cannot enter the workdir $_ens_workdir on $HOSTNAME"
fi
_ens_open() {
    [ -d "${2%/*}" ] || mkdir -p -- "${2%/*}"
    eval "exec $1>>\"\$2\"" || _ens_fail output "cannot open the output file $2 on $HOSTNAME"
}
_ens_open 6 "$_ens_out"
if [ "$_ens_err" = "$_ens_out" ]; then exec 7>&6; else _ens_open 7 "$_ens_err"; fi

set -m
trap '_ens_stop stopped' TERM
trap '_ens_stop timeout' ALRM
trap _ens_gone=1 URG
for _ens_signal in HUP INT QUIT USR1 USR2; do
    trap "kill -$_ens_signal -- -\$_ens_pid" $_ens_signal
done
# The run's own signals come as other numbers, because the queue also sends the usual ones.
for _ens_signal in INT:2 QUIT:3 USR1:10 USR2:12 TERM:15; do
    trap "_ens_send ${_ens_signal%:*}" RTMIN+${_ens_signal#*:}
done
_ens_now
_ens_t0=$_ens_time
(
    trap - HUP INT QUIT USR1 USR2 TERM ALRM URG RTMIN+{2,3,10,12,15}
    [ -z "$_ens_early" ] || exit 143
    exec -- "${_ens_env[@]}" "${_ens_launch[@]}" "$@"
) >&6 2>&7 6>&- 7>&- &
_ens_pid=$!
[ -z "$_ens_early" ] || _ens_stop "$_ens_early"
exec 6>&- 7>&-
_ens_tell start "$_ens_t0" "$HOSTNAME" &
_ens_told=$!
if [ "$_ens_limit" != 0 ]; then
    # In slices, because one long sleep would also count time while the job is suspended
    # (preemption, gang scheduling).
    _ens_count() {
        while [ "$_ens_slices" -gt 0 ]; do
            sleep "$_ens_slice"
            # A queue stops one process after another and may miss this one.
            read -r line </proc/$$/stat
            case ${line##*) } in T*) ;; *) _ens_slices=$((_ens_slices - 1)) ;; esac
            # Bash can lose the end of a process if a signal comes at the same moment. Then it waits
            # for the other ones, such as this loop.
            kill -0 "$_ens_pid" || kill -URG $$
        done
    }
    {
        _ens_count
        if [ -n "$_ens_warn" ]; then
            _ens_send "$_ens_warn"
            _ens_slices=$_ens_rests _ens_slice=$_ens_rest
            _ens_count
        fi
        kill -ALRM $$
    } 2>/dev/null &
    _ens_clock=$!
fi
# With job control, bash would leave the loop when SIGTSTP stops the child.
set +m
# A trap ends the wait. Bash usually remembers the status of a child that ended at the same moment;
# if not, it says 255. The wait also returns, repeatedly, if the child was stopped before it.
while wait "$_ens_pid"; _ens_rc=$?; kill -0 "$_ens_pid"; do
    case $_ens_rc in 147 | 148 | 149 | 150) sleep 0.2 ;; esac
done
if [ -z "$_ens_gone" ]; then
    wait "$_ens_pid"; _ens_again=$?
    [ $_ens_again = 127 ] || { [ $_ens_again = 255 ] && [ $_ens_rc -gt 128 ]; } || _ens_rc=$_ens_again
fi
[ -n "$_ens_gone" ] && [ $_ens_rc = 151 ] && _ens_rc=255
_ens_now
# A queue signals one process after another. So the command may have ended before our signal comes,
# or may even have taken its child's death for a success.
if [ "$_ens_why" = - ] && { [ "$_ens_rc" != 0 ] || [ "$SECONDS" -ge 2 ]; }; then sleep 0.1; fi
if [ "$_ens_why" != - ] && [ "$_ens_rc" = 255 ]; then _ens_rc=143; fi
trap '' TERM ALRM URG HUP INT QUIT USR1 USR2 RTMIN+{2,3,10,12,15}
# No process may outlive its job.
kill -KILL -- "-$_ens_pid"
[ -n "$_ens_clock" ] && kill -KILL -- "-$_ens_clock"
[ -n "$_ens_force" ] && kill -KILL -- "-$_ens_force"
_ens_empty=()
for _ens_file in "${_ens_kept[@]}"; do
    [ -s "$_ens_file" ] || _ens_empty+=("$_ens_file")
done
[ ${#_ens_empty[@]} = 0 ] || rm -f -- "${_ens_empty[@]}"
[ "$SECONDS" -lt 20 ] || _ens_limited=1
if kill -0 "$_ens_told"; then
    # The start is still being reported: give up after some seconds, the controller is unreachable.
    _ens_limited=1
    [ "$SECONDS" -lt 5 ] || { kill -KILL -- "-$_ens_told"; _ens_limited=2; }
fi
_ens_tell end "$_ens_rc" "$_ens_why" "$_ens_t0" "$_ens_time" "$HOSTNAME"
exit "$_ens_rc"
