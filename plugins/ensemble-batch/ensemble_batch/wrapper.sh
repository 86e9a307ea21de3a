# Wrapper of every job of a polled queue. It claims the job, starts the command, ends it at its time
# limit, and records its start and end. The preceding lines of the script define the job; see
# job_script.py.
exec </dev/null
_ens_report=$_ens_folder/reports/$_ens_name _ens_variables=$_ens_folder/variables/$_ens_name
_ens_now() {
    if [ -n "$EPOCHREALTIME" ]; then _ens_time=${EPOCHREALTIME/[!0-9]/.}; else _ens_time=$(date +%s.%N); fi
}
# Atomically: a reader never sees a partial file. Retries, because a full disk may recover.
_ens_end() {
    local line="$1 $2 $_ens_t0 $_ens_time $HOSTNAME $3" try
    for try in 1 2 3 4 5 6 7 8 9 10 11 12; do
        printf '%s\n' "$line" >"$_ens_report.new" && mv -- "$_ens_report.new" "$_ens_report.end" && return
        sleep 5
    done
}
_ens_fail() {
    _ens_now
    _ens_t0=$_ens_time
    _ens_end "$1" "fail-$2" "$3"
    exit "$1"
}
_ens_now
_ens_t0=$_ens_time _ens_why=- _ens_rc=0 _ens_clock= _ens_force= _ens_follower= _ens_pids=()
_ens_early= _ens_started= _ens_noticed= _ens_post= _ens_gone=
# The process that creates this file runs the job. A second copy, a restarted one and a cancelled
# one find it and end with a special exit code (CLAIMED in spool.py).
if ! ( set -C; printf '%s\n' "$_ens_t0 $HOSTNAME $_ens_id" >"$_ens_report" ) 2>/dev/null; then
    [ -e "$_ens_report" ] && exit 121
    echo "ensemble: cannot write $_ens_report; nothing was run" >&2
    exit 125
fi
# The file has secrets, so it is removed as soon as it was read.
[ -r "$_ens_variables" ] || _ens_fail 126 launch "cannot read $_ens_variables on $HOSTNAME"
. "$_ens_variables"
rm -f -- "$_ens_variables"
[ -d "$_ens_workdir" ] || mkdir -p -- "$_ens_workdir" || _ens_fail 126 workdir "cannot create the workdir $_ens_workdir on $HOSTNAME"
cd -- "$_ens_workdir" || _ens_fail 126 workdir "cannot enter the workdir $_ens_workdir on $HOSTNAME"
_ens_open() {
    [ -d "${2%/*}" ] || mkdir -p -- "${2%/*}"
    eval "exec $1>>\"\$2\"" || _ens_fail 126 output "cannot open the output file $2 on $HOSTNAME"
}
_ens_open 6 "$_ens_out"
if [ "$_ens_err" = "$_ens_out" ]; then exec 7>&6; else _ens_open 7 "$_ens_err"; fi

_ens_signal() {
    local signal=$1 pid
    shift
    for pid in "${_ens_pids[@]}" "$@"; do kill "-$signal" -- "-$pid"; done
}
# Only once: many programs abort at a second SIGTERM. A signal that comes while tasks are started is
# acted on when all their ids are known.
_ens_stop() {
    [ -n "$_ens_started" ] || { _ens_early=$1; return; }
    [ "$_ens_why" = - ] || { _ens_signal CONT; return; }
    _ens_why=$1
    _ens_signal TERM
    _ens_signal CONT
    set -m
    { sleep "$_ens_grace"; _ens_signal KILL; } &
    _ens_force=$!
    set +m
}
# Some queues (Grid Engine) stop and continue only this shell, after a notice. The follower passes
# that on to the tasks and the clock, and ends them if this shell is killed meanwhile. It follows
# until the job ends, because the queue may continue the job before it has stopped it. It starts when
# it knows all of them.
_ens_follow() {
    [ -n "$_ens_post" ] || { _ens_noticed=1; return; }
    [ -z "$_ens_follower" ] || return
    set -m
    {
        trap - $_ens_signals ALRM
        while read -r line </proc/$$/stat; do
            case ${line##*) },$stopped in
            Z*) break ;;
            T*,) stopped=1; _ens_signal STOP $_ens_clock ;;
            T* | *,) ;;
            *) stopped=; _ens_signal CONT $_ens_clock ;;
            esac
            sleep 1
        done
        _ens_signal KILL $_ens_clock
    } 2>/dev/null &
    _ens_follower=$!
    set +m
}
set -m
_ens_signals='TERM USR1 USR2 XCPU INT HUP QUIT'
trap '_ens_stop stopped' $_ens_signals
if [ -n "$_ens_notice" ]; then
    # Grid Engine sends this signal before it kills a deleted job (qsub -notify).
    trap '_ens_stop deleted' USR2
    trap _ens_follow $_ens_notice
fi
trap '_ens_stop timeout' ALRM
trap _ens_gone=1 URG
for ((_ens_rank = 0; _ens_rank < _ens_tasks; _ens_rank++)); do
    (
        trap - $_ens_signals ALRM URG
        [ -z "$_ens_early" ] || exit 143
        export ENSEMBLE_TASK_RANK=$_ens_rank
        exec -- "${_ens_env[@]}" "$@"
    ) >&6 2>&7 6>&- 7>&- &
    _ens_pids+=($!)
done
_ens_started=1
[ -z "$_ens_early" ] || _ens_stop "$_ens_early"
exec 6>&- 7>&-
if [ "$_ens_limit" != 0 ]; then
    # In slices, because one long sleep would also count time while the job is suspended.
    _ens_count() {
        while [ "$_ens_slices" -gt 0 ]; do
            sleep "$_ens_slice"
            # A queue stops one process after another and may miss this one.
            read -r line </proc/$$/stat
            case ${line##*) } in T*) ;; *) _ens_slices=$((_ens_slices - 1)) ;; esac
        done
    }
    {
        _ens_count
        if [ -n "$_ens_warn" ]; then
            _ens_signal "$_ens_warn"
            _ens_slices=$_ens_rests _ens_slice=$_ens_rest
            _ens_count
        fi
        kill -ALRM $$
    } 2>/dev/null &
    _ens_clock=$!
fi
# Signals from the run come as files, because not every queue can send them. The glob opens the
# folder, so that a network file system asks its server.
{
    set +m  # a suspended sleep must not end the loop
    while sleep 2; kill -0 $$; do
        for _ens_file in "$_ens_folder/signals/$_ens_name".*; do
            [ -e "$_ens_file" ] && rm -f -- "$_ens_file" && _ens_signal "${_ens_file##*.}"
        done
        # Bash can lose the end of a process if a signal comes at the same moment. Then it waits for
        # the other ones, such as this loop.
        for _ens_pid in "${_ens_pids[@]}"; do kill -0 "$_ens_pid" && continue 2; done
        kill -URG $$
    done
} 2>/dev/null &
_ens_post=$!
disown "$_ens_post"  # else bash reports that it was killed
[ -z "$_ens_noticed" ] || _ens_follow
# With job control, bash would leave the loops when SIGTSTP stops a child.
set +m
# A trap ends a wait, so repeat it until the process has ended. The wait also returns, repeatedly,
# if the process was stopped before it. The highest exit code counts.
for _ens_pid in "${_ens_pids[@]}"; do
    while wait "$_ens_pid"; _ens_one=$?; kill -0 "$_ens_pid" 2>/dev/null; do
        case $_ens_one in 147 | 148 | 149 | 150) sleep 0.2 ;; esac
    done
    if [ -z "$_ens_gone" ]; then
        wait "$_ens_pid"; _ens_again=$?
        [ $_ens_again = 127 ] && [ $_ens_one -gt 128 ] || _ens_one=$_ens_again
    fi
    [ -n "$_ens_gone" ] && [ $_ens_one = 151 ] && _ens_one=143  # its exit code is lost
    [ "$_ens_one" -gt "$_ens_rc" ] && _ens_rc=$_ens_one
done
_ens_now
trap '' $_ens_signals ALRM URG
[ "$_ens_why" = - ] || [ "$_ens_rc" != 0 ] || _ens_rc=143
# No process may outlive its job.
_ens_signal KILL 2>/dev/null
kill -KILL -- "-$_ens_post" 2>/dev/null
[ -n "$_ens_clock" ] && kill -KILL -- "-$_ens_clock" 2>/dev/null
[ -n "$_ens_force" ] && kill -KILL -- "-$_ens_force" 2>/dev/null
[ -n "$_ens_follower" ] && kill -KILL -- "-$_ens_follower" 2>/dev/null
for _ens_file in "${_ens_kept[@]}"; do
    [ -s "$_ens_file" ] || rm -f -- "$_ens_file"
done
_ens_end "$_ens_rc" "$_ens_why"
exit "$_ens_rc"
