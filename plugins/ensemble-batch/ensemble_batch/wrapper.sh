# Wrapper of every job of a polled queue. It claims the job, starts the command, ends it at its time
# limit, and records its start and end. The preceding lines of the script define the job; see
# job_script.py.
exec </dev/null
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
_ens_t0=$_ens_time _ens_why=- _ens_rc=0 _ens_clock= _ens_force= _ens_pids=()
# The process that creates this file runs the job. A second copy, a restarted one and a cancelled
# one find it and end with a special exit code (CLAIMED in spool.py).
if ! ( set -C; printf '%s\n' "$_ens_t0 $HOSTNAME $_ens_id" >"$_ens_report" ) 2>/dev/null; then
    [ -e "$_ens_report" ] && exit 121
    echo "ensemble: cannot write $_ens_report; nothing was run" >&2
    exit 125
fi
[ -d "$_ens_workdir" ] || mkdir -p -- "$_ens_workdir" || _ens_fail 126 workdir "cannot create the workdir $_ens_workdir on $HOSTNAME"
cd -- "$_ens_workdir" || _ens_fail 126 workdir "cannot enter the workdir $_ens_workdir on $HOSTNAME"
_ens_open() {
    [ -d "${2%/*}" ] || mkdir -p -- "${2%/*}"
    eval "exec $1>>\"\$2\"" || _ens_fail 126 output "cannot open the output file $2 on $HOSTNAME"
}
_ens_open 6 "$_ens_out"
if [ "$_ens_err" = "$_ens_out" ]; then exec 7>&6; else _ens_open 7 "$_ens_err"; fi

_ens_signal() {
    for _ens_pid in "${_ens_pids[@]}"; do kill "-$1" -- "-$_ens_pid"; done
}
_ens_stop() {
    [ "$_ens_why" = - ] && _ens_why=$1
    _ens_signal TERM
    [ -z "$_ens_force" ] || return
    # The empty argument keeps this shell's own processes.
    { sleep "$_ens_grace"; _ens_signal KILL; } &
    _ens_force=$!
}
set -m
trap '_ens_stop stopped' TERM USR1 USR2 XCPU INT HUP QUIT
trap '_ens_stop timeout' ALRM
for ((_ens_rank = 0; _ens_rank < _ens_tasks; _ens_rank++)); do
    (
        trap - TERM USR1 USR2 XCPU INT HUP QUIT ALRM
        export ENSEMBLE_TASK_RANK=$_ens_rank
        exec -- "${_ens_env[@]}" "$@"
    ) >&6 2>&7 6>&- 7>&- &
    _ens_pids+=($!)
done
exec 6>&- 7>&-
if [ "$_ens_limit" != 0 ]; then
    { sleep "$_ens_limit"; kill -ALRM $$; } &
    _ens_clock=$!
fi
# A trap ends a wait, so repeat it until the process has ended. The highest exit code counts.
for _ens_pid in "${_ens_pids[@]}"; do
    while wait "$_ens_pid"; _ens_one=$?; kill -0 "$_ens_pid" 2>/dev/null; do
        case $_ens_one in 147 | 148 | 149 | 150) sleep 0.2 ;; esac
    done
    wait "$_ens_pid"; _ens_again=$?
    [ $_ens_again = 127 ] && [ $_ens_one -gt 128 ] || _ens_one=$_ens_again
    [ "$_ens_one" -gt "$_ens_rc" ] && _ens_rc=$_ens_one
done
_ens_now
trap '' TERM USR1 USR2 XCPU INT HUP QUIT ALRM
[ "$_ens_why" = - ] || [ "$_ens_rc" != 0 ] || _ens_rc=143
# No process may outlive its job.
_ens_signal KILL 2>/dev/null
[ -n "$_ens_clock" ] && kill -KILL -- "-$_ens_clock" 2>/dev/null
[ -n "$_ens_force" ] && kill -KILL -- "-$_ens_force" 2>/dev/null
for _ens_file in "${_ens_kept[@]}"; do
    [ -s "$_ens_file" ] || rm -f -- "$_ens_file"
done
_ens_end "$_ens_rc" "$_ens_why"
exit "$_ens_rc"
