"""Contract of an executor whose controller ends or is killed while jobs run."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from ensemble_core.errors import ExecutorError
from ensemble_core.model.events import ExecutorLost
from ensemble_testing.executor_settings import ExecutorKnobs
from ensemble_testing.processes import run_and_kill
from ensemble_testing.session import Session, wait_until


class LeavingContract(ExecutorKnobs):
    """Tests of :meth:`Executor.close` and :meth:`Executor.reattach`."""

    def test_nothing_is_emitted_after_close(self, tmp_path: Path) -> None:
        """No events are emitted, neither for finished jobs nor for running jobs that end later."""
        ended = tmp_path / "ended"
        session = self.new_session(tmp_path)
        with session:
            session.run(session.job(*self.succeeding))
            last = session.job("sh", "-c", f"sleep 1; : > '{ended}'")
            session.submit(last)
            session.wait_for(last, "start")
        before = len(session.events)
        if self.same_machine and "detach" in session.executor.capabilities:
            wait_until(ended.exists, self.timeout)
        else:
            time.sleep(1.5)
        time.sleep(0.5)  # long enough for a forgotten thread to emit
        assert len(session.events) == before
        assert not any(isinstance(event, ExecutorLost) for event in session.events)

    def test_jobs_outlive_the_controller_if_declared(self, tmp_path: Path) -> None:
        if "detach" not in self.make_executor().capabilities or not self.same_machine:
            pytest.skip("its jobs end with it, or are on another machine")
        may_end, ended = tmp_path / "may end", tmp_path / "ended"
        with self.new_session(tmp_path) as session:
            wait = f"while [ ! -e '{may_end}' ]; do sleep 0.1; done; : > '{ended}'"
            job = session.job("sh", "-c", wait)
            session.submit(job)
            session.wait_for(job, "start")
        may_end.touch()
        wait_until(ended.exists, self.timeout)

    def test_later_controller_keeps_what_the_run_has_written_to_an_output_file(
        self, tmp_path: Path
    ) -> None:
        """A file is truncated when the run first uses it, not when a controller does."""
        if "reattach" not in self.make_executor().capabilities or not self.same_machine:
            pytest.skip("it has no later controllers, or its jobs are on another machine")
        log = tmp_path / "shared.txt"
        log.write_text("yesterday\n")
        with self.new_session(tmp_path) as first:
            early = first.job("echo", "early", stdout=str(log))
            first.run(early)
            if self.fatal(first, early):
                pytest.skip("it rejects jobs that name an output file")
            assert log.read_text() == "early\n"
        later = self.new_session(tmp_path)
        later.resume(first)
        with later:
            later.executor.reattach({})
            late = later.job("echo", "late", group="late", stdout=str(log))
            later.run(late)
            assert later.context(late, "finish")["status"] == 0
        assert log.read_text() == "early\nlate\n"

    def test_run_without_stored_state_works(self, tmp_path: Path) -> None:
        with self.new_session(tmp_path, kept=False, tidy=True) as session:
            jobs = [session.job(*self.succeeding), session.job(*self.failing)]
            session.run(*jobs)
            for job in jobs:
                self.check_order(session, job)
            lasting = session.job(*self.lasting)
            session.submit(lasting)
            session.wait_for(lasting, "start")
            session.cancel(lasting)
            session.wait_clean(lasting)
            self.check_end(session, lasting, "cancel")

    def test_jobs_are_reattached_after_a_kill(self, tmp_path: Path) -> None:
        """The controller is killed with SIGKILL, so that nothing is closed."""
        if "reattach" not in self.make_executor().capabilities:
            pytest.skip("it cannot find jobs again")
        if not self.forks:
            pytest.skip("a controller of this executor cannot be a fork")
        first = self.new_session(tmp_path)
        over, soon = first.job(*self.succeeding), first.job("sleep", "2")
        lasting = first.job(*self.lasting)

        def control() -> None:
            first.__enter__()
            first.run(over)
            first.submit(soon, lasting)
            first.wait_for(soon, "start")
            first.wait_for(lasting, "start")

        run_and_kill(control, tmp_path / "trace")
        second = self.new_session(tmp_path)
        second.resume(first)
        with second:
            asked = {over.id: 0.0, soon.id: 0.0, lasting.id: 0.0, "t.99999": 0.0}
            found = second.executor.reattach(asked)
            assert found == {over.id: True, soon.id: True, lasting.id: True, "t.99999": False}
            second.wait_clean(over, soon)
            for job in (over, soon):
                self.check_order(second, job)
                assert second.context(job, "finish")["status"] == 0
            second.cancel(lasting)
            second.wait_clean(lasting)
            self.check_end(second, lasting, "cancel")

    def test_jobs_of_another_run_with_the_same_tag_are_foreign(self, tmp_path: Path) -> None:
        """Two runs in two folders, or one whose folder was removed, have the same tag and job ids.

        Find jobs by the identity ``Run.id``, never by ``Run.tag`` or a job's id alone.
        """
        if not {"reattach", "detach"} <= self.make_executor().capabilities:
            pytest.skip("it leaves no jobs that another run could find")
        first = self.new_session(tmp_path)
        over, lasting = first.job(*self.succeeding), first.job(*self.lasting)
        with first:
            first.run(over)
            first.submit(lasting)
            first.wait_for(lasting, "start")
        (tmp_path / "other").mkdir()
        other = self.new_session(tmp_path / "other")
        other.tag = first.tag
        with other:
            found = other.executor.reattach({over.id: 0.0, lasting.id: 0.0})
            assert found == {over.id: False, lasting.id: False}
            other.job()
            same = other.job(*self.lasting)
            assert same.id == lasting.id
            other.submit(same)
            other.wait_for(same, "submit")
            other.cancel(same)
            other.wait_clean(same)
            self.check_order(other, same)
            self.check_end(other, same, "cancel")
            assert not other.of(over)
        with self.new_session(tmp_path).resume(first) as later:
            later.take_over([lasting.id])
            assert "clean" not in later.names(lasting)
            later.cancel(lasting)
            later.wait_clean(lasting)
            self.check_end(later, lasting, "cancel")

    def test_close_releases_threads_and_descriptors(self, tmp_path: Path) -> None:
        if not Path("/proc/self/fd").exists():
            pytest.skip("no /proc on this system")

        def opened() -> list[str]:
            found = []
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):  # the descriptor of this listing
                    found.append(os.readlink(f"/proc/self/fd/{name}"))
            return found

        for count in range(3):
            if count == 1:  # the first call may load modules that stay loaded
                gc.collect()
                threads, descriptors = threading.enumerate(), opened()
            with self.new_session(tmp_path) as session:
                session.run(session.job(*self.succeeding), session.job(*self.missing))

        def released() -> bool:
            gc.collect()  # connections in reference cycles
            count = threading.active_count()
            return count <= len(threads) and len(opened()) <= len(descriptors)

        deadline = time.monotonic() + self.timeout
        while not released() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert released(), (threads, threading.enumerate(), descriptors, opened())

    def test_jobs_are_reattached_after_a_close(self, tmp_path: Path) -> None:
        if "reattach" not in self.make_executor().capabilities:
            opened = self.new_session(tmp_path)
            with opened as session, pytest.raises(ExecutorError):
                session.executor.reattach({"t.0": 0.0})
            return
        first = self.new_session(tmp_path)
        over, lasting = first.job(*self.succeeding), first.job(*self.lasting)
        may_end, ended = tmp_path / "may end", tmp_path / "ended"
        wait = f"while [ ! -e '{may_end}' ]; do sleep 0.1; done; : > '{ended}'"
        soon = first.job(*(("sh", "-c", wait) if self.same_machine else ("sleep", "2")))
        waiting = [first.job(*self.lasting) for _ in range(self.many)]
        ids = [job.id for job in waiting]
        with first:
            first.run(over)
            first.submit(soon, lasting)
            first.wait_for(soon, "start")
            if (self.slots_of(first) or 1) > 1:
                first.wait_for(lasting, "start")
            first.submit(*waiting)
            first.wait_for(waiting[-1], "priority")
        second = self.new_session(tmp_path)
        second.resume(first)
        with second:
            # One of the jobs ends before reattach asks about it.
            if self.same_machine:
                may_end.touch()
                wait_until(ended.exists, self.timeout)
            else:
                time.sleep(3)
            newest = first.of(lasting)[-1].timestamp
            found = second.executor.reattach(
                {over.id: 0.0, lasting.id: newest, soon.id: 0.0, "t.99999": 0.0}
                | dict.fromkeys(ids, 0.0)
            )
            assert found == {over.id: True, lasting.id: True, soon.id: True, "t.99999": False} | (
                dict.fromkeys(ids, True)
            )
            second.wait_clean(over, soon)
            for job in (over, soon):
                self.check_order(second, job)
            assert self.times(second, over) == self.times(first, over)
            assert self.times(first, soon).items() <= self.times(second, soon).items()
            assert "submit" not in second.names(lasting)
            second.cancel(lasting, *ids)
            second.wait_clean(lasting, *waiting)
            self.check_end(second, lasting, "cancel")
            for job in waiting:
                self.check_order(second, job)
                self.check_end(second, job, "cancel")

    def test_event_times_of_a_job_differ(self, session: Session) -> None:
        """A reader that requests the events newer than a given one gets all later events."""
        if "reattach" not in session.executor.capabilities:
            pytest.skip("times are asked for by reattach only")
        jobs = [session.job(*self.succeeding) for _ in range(self.many)]
        session.run(*jobs)
        for job in jobs:
            times = [event.timestamp for event in session.of(job)]
            assert all(earlier < later for earlier, later in itertools.pairwise(times)), times

    def test_executor_can_be_closed_at_once(self, tmp_path: Path) -> None:
        with self.new_session(tmp_path) as session:
            assert session.executor is not None
