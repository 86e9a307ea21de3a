# Starts a job's tasks, stops them, and waits for them: the part that both wrappers share. The
# wrapper defines _ens_fail, and sets _ens_forces: 1 if it has to use SIGKILL itself after the queue
# has told the job to end.
exec </dev/null
_ens_why=- _ens_rc=0 _ens_t0=0 _ens_started= _ens_force= _ens_clock=
_ens_pids=() _ens_asides=()
# All that end a process, as numbers: names differ between versions of bash.
printf -v _ens_all '%s ' {1..3} 10 {12..16} {24..27} 29 30 {34..64}

_ens_now() {
    if [ -n "$EPOCHREALTIME" ]; then _ens_time=${EPOCHREALTIME/[!0-9]/.}; else _ens_time=$(date +%s.%6N); fi
}

# Ends the wrapper. After some exit codes, the queue would start the job again, or hold it forever.
_ens_exit() {
    case " $_ens_restart_codes " in *" $1 "*) exit "$_ens_failed" ;; esac
    exit "$1"
}

# Enters the folder of the job and opens its output files.
_ens_enter() {
    if [ -n "$_ens_workdir" ]; then
        [ -d "$_ens_workdir" ] || mkdir -p -- "$_ens_workdir" || _ens_fail workdir "cannot create the workdir $_ens_workdir on $HOSTNAME"
        cd -- "$_ens_workdir" || _ens_fail workdir "cannot enter the workdir $_ens_workdir on $HOSTNAME"
    fi
    _ens_open 6 "$_ens_out"
    if [ "$_ens_err" = "$_ens_out" ]; then exec 7>&6; else _ens_open 7 "$_ens_err"; fi
    # A pipe for the exit codes of tasks.
    exec 8< <(:) 9>/proc/self/fd/8
}
_ens_open() {
    [ -d "${2%/*}" ] || mkdir -p -- "${2%/*}"
    eval "exec $1>>\"\$2\"" || _ens_fail output "cannot open the output file $2 on $HOSTNAME"
}

# Starts a task in a process group of its own. If a signal comes while a task ends, bash can lose its
# exit code ('wait' leaves by a jump). So another shell waits for the task, and writes the code. A
# shell that was just forked loses a signal until its traps are its own: then it writes 'r'.
_ens_start() {
    set -m
    (
        trap : $_ens_all
        trap _ens_early=1 TERM
        (
            trap - $_ens_all
            echo r >&9
            [ -z "$_ens_early" ] || exit 143
            exec -- "$@" 9>&-
        ) >&6 2>&7 6>&- 7>&-
        echo $? >&9
    ) 8<&- 2>/dev/null &
    _ens_pids+=($!)
    set +m
}

# Runs a function beside the tasks until the job ends.
_ens_aside() {
    set -m
    "$@" 2>/dev/null &
    set +m
    _ens_asides+=($!)
    disown $!  # else bash reports that it was killed
}

# Sends a signal to the tasks, and to further groups.
_ens_signal() {
    local signal=$1 pid
    shift
    for pid in "${_ens_pids[@]}" "$@"; do kill "-$signal" -- "-$pid" 2>/dev/null; done
}

# Ends the tasks, for the queue or for the clock. They get SIGTERM only once: many programs abort at
# a second one. A signal that comes while they are started is acted on when all can get it.
_ens_stop() {
    [ -n "$_ens_started" ] || { _ens_early=$1; return; }
    if [ "$_ens_why" = - ]; then
        _ens_why=$1
        _ens_signal TERM
    fi
    _ens_signal CONT
    [ -z "$_ens_force" ] && [ "$1$_ens_forces" != stopped ] || return
    _ens_aside _ens_kill
    _ens_force=$!
}
_ens_kill() {
    sleep "$_ens_grace"
    _ens_signal KILL
}

# The time limit, in slices, because one long sleep would also count time while the job is suspended
# (preemption, gang scheduling).
_ens_time_limit() {
    _ens_count
    if [ -n "$_ens_warn" ]; then
        "$_ens_warns" "$_ens_warn"
        _ens_slices=$_ens_rests _ens_slice=$_ens_rest
        _ens_count
    fi
    kill -VTALRM $$  # 'read' uses SIGALRM
}
_ens_count() {
    while [ "$_ens_slices" -gt 0 ]; do
        sleep "$_ens_slice"
        # A queue stops one process after another and may miss this one.
        read -r line </proc/$$/stat
        case ${line##*) } in T*) ;; *) _ens_slices=$((_ens_slices - 1)) ;; esac
    done
}

# Waits for the tasks. The highest exit code counts. 'read' returns every two seconds, because bash does
# not run the trap of a signal that comes just before 'read' blocks. It may then have read a part.
_ens_wait() {
    local code part status pid left=${#_ens_pids[@]} ready=0
    while read -r -t 2 -u 8 part; status=$?; [ $status = 0 ] || [ $status -gt 128 ]; do
        code+=$part
        [ $status = 0 ] || continue
        if [ "$code" = r ]; then
            ready=$((ready + 1))
        else
            left=$((left - 1))
            [ "$code" -le "$_ens_rc" ] || _ens_rc=$code
        fi
        code=
        [ $ready -lt $left ] || _ens_all_started
    done
    _ens_all_started
    [ $left != 0 ] || return
    # A task's shell was killed, perhaps before it started the task. A trap would end 'wait' with the
    # signal's number.
    trap '' $_ens_all
    for pid in "${_ens_pids[@]}"; do
        wait "$pid" || { code=$?; [ $code -le "$_ens_rc" ] || _ens_rc=$code; }
    done
}

_ens_all_started() {
    [ -z "$_ens_started" ] || return
    _ens_started=1
    [ -z "$_ens_early" ] || _ens_stop "$_ens_early"
}

# No process may outlive its job. Empty output files are removed.
_ens_clear() {
    local pid file empty=()
    trap '' $_ens_all
    _ens_signal KILL "${_ens_asides[@]}"
    for file in "${_ens_kept[@]}"; do
        [ -s "$file" ] || empty+=("$file")
    done
    [ ${#empty[@]} = 0 ] || rm -f -- "${empty[@]}"
}
