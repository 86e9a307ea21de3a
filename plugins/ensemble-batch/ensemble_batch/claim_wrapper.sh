# Wrapper of every job of a polled queue. It claims the job, starts the command, ends it at its time
# limit, and records its start and end. The preceding lines of the script define the job (see
# job_script.py) and the functions of tasks.sh.
_ens_report=$_ens_folder/reports/$_ens_name _ens_variables=$_ens_folder/variables/$_ens_name
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
    _ens_end 126 "fail-$1" "$2"
    exit 126
}
_ens_now
_ens_t0=$_ens_time _ens_forces=1 _ens_warns=_ens_signal _ens_follower= _ens_post=
# The process that creates this file runs the job. A second copy, a restarted one and a cancelled
# one find it and end with a special exit code (CLAIMED in claims_and_file_reports.py).
if ! ( set -C; printf '%s\n' "$_ens_t0 $HOSTNAME $_ens_id" >"$_ens_report" ) 2>/dev/null; then
    [ -e "$_ens_report" ] && exit 121
    echo "ensemble: cannot write $_ens_report; nothing was run" >&2
    exit 125
fi
# The file has secrets, so it is removed as soon as it was read.
[ -r "$_ens_variables" ] || _ens_fail launch "cannot read $_ens_variables on $HOSTNAME"
. "$_ens_variables"
rm -f -- "$_ens_variables"
_ens_enter

# Some queues (Grid Engine) stop and continue only this shell, after a notice. The follower passes
# that on to the tasks and the clock, and ends them if this shell is killed meanwhile. It follows
# until the job ends, because the queue may continue the job before it has stopped it. It starts when
# it knows all of them.
_ens_follow() {
    [ -n "$_ens_post" ] || { _ens_noticed=1; return; }
    [ -z "$_ens_follower" ] || return
    _ens_aside _ens_mirror
    _ens_follower=1
}
_ens_mirror() {
    local line stopped
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
}
# Signals from the run come as files, because not every queue can send them. The glob opens the
# folder, so that a network file system asks its server.
_ens_fetch() {
    local file
    while sleep 2; kill -0 $$; do
        for file in "$_ens_folder/signals/$_ens_name".*; do
            [ -e "$file" ] && rm -f -- "$file" && _ens_signal "${file##*.}"
        done
    done
}

trap '_ens_stop stopped' TERM USR1 USR2 XCPU INT HUP QUIT
if [ -n "$_ens_notice" ]; then
    # Grid Engine sends this signal before it kills a deleted job (qsub -notify).
    trap '_ens_stop deleted' USR2
    trap _ens_follow $_ens_notice
fi
trap '_ens_stop timeout' VTALRM
for ((_ens_rank = 0; _ens_rank < _ens_tasks; _ens_rank++)); do
    ENSEMBLE_TASK_RANK=$_ens_rank _ens_start "${_ens_env[@]}" "$@"
done
exec 6>&- 7>&- 9>&-
if [ "$_ens_limit" != 0 ]; then
    _ens_aside _ens_time_limit
    _ens_clock=$!
fi
_ens_aside _ens_fetch
_ens_post=$!
[ -z "$_ens_noticed" ] || _ens_follow
_ens_wait
_ens_now
[ "$_ens_why" = - ] || [ "$_ens_rc" != 0 ] || _ens_rc=143
_ens_clear
_ens_end "$_ens_rc" "$_ens_why"
_ens_exit "$_ens_rc"
