"""Locks on Django's own connection, on each database. Another connection is that of another thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase

from leasehold import AcquireTimeout, Unsupported
from leasehold.integrations.django import atomic_lock, transaction_lock
from shop.models import Stock

VENDOR = connection.vendor


def elsewhere(work):
    """Run a function in a thread, with a connection of its own."""

    def run():
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(30)


def free(name="x"):
    """Return whether another connection could have the lock."""

    def attempt():
        try:
            with atomic_lock(name, timeout=0):
                return True
        except AcquireTimeout:
            return False

    return elsewhere(attempt)


@contextmanager
def autocommit_off():
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


class OnServers(TransactionTestCase):
    if VENDOR == "sqlite":

        def test_sqlite_is_refused(self):
            with self.assertRaisesRegex(Unsupported, "IMMEDIATE"), atomic_lock("x"):
                pass
            with transaction.atomic(), self.assertRaisesRegex(Unsupported, "IMMEDIATE"):
                transaction_lock("x")

    else:

        def test_it_is_released_by_the_commit(self):
            with atomic_lock("x", timeout=1):
                assert not free()
                assert free("y")
            assert free()

        def test_it_is_released_by_a_rollback(self):
            with self.assertRaises(ZeroDivisionError), atomic_lock("x", timeout=1):
                assert not free()
                raise ZeroDivisionError
            assert free()
            assert not connection.in_atomic_block

        def test_it_decorates_a_function(self):
            @atomic_lock("x", timeout=1)
            def sell():
                assert connection.in_atomic_block
                return free()

            assert sell() is False
            assert free()

        def test_what_runs_after_its_call_is_refused(self):
            async def sell():
                pass

            def several():
                yield

            for function in (sell, several):
                with self.assertRaisesRegex(TypeError, "sync_to_async"):
                    atomic_lock("x")(function)

        def test_durable_is_refused_inside_another_block(self):
            with atomic_lock("x", timeout=1, durable=True):
                assert not free()
            lock = atomic_lock("x", durable=True)
            with transaction.atomic(), self.assertRaisesRegex(RuntimeError, "durable"), lock:
                pass

        def test_the_next_holder_reads_what_the_last_one_wrote(self):
            """No update is lost, at the isolation level that the database has by default."""
            item = Stock.objects.create(left_over=0).pk

            def sell():
                try:
                    for _ in range(10):
                        with atomic_lock("stock", timeout=30):
                            found = Stock.objects.get(pk=item)
                            found.left_over += 1
                            found.save()
                finally:
                    connection.close()

            threads = [threading.Thread(target=sell) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert Stock.objects.get(pk=item).left_over == 40

        def test_one_object_serves_all_threads(self):
            item = Stock.objects.create(left_over=0).pk
            lock = atomic_lock("stock", timeout=30)

            def sell():
                try:
                    for _ in range(10):
                        with lock:
                            found = Stock.objects.get(pk=item)
                            found.left_over += 1
                            found.save()
                finally:
                    connection.close()

            with ThreadPoolExecutor(4) as pool:
                done = [pool.submit(sell) for _ in range(4)]
            assert [one.exception() for one in done] == [None] * 4
            assert Stock.objects.get(pk=item).left_over == 40

        def test_an_ended_session_ends_the_lock(self):
            """The transaction fails, and the lock is free, as if the server had been killed."""
            with self.assertRaises(Exception), atomic_lock("x", timeout=1):  # noqa: B017
                Stock.objects.create()
                end_session()
                Stock.objects.create()
            connection.close()
            assert free()
            assert not Stock.objects.exists()

    if VENDOR == "postgresql":

        def test_a_lock_of_an_inner_block_lasts_to_the_outermost_commit(self):
            with transaction.atomic():
                with transaction.atomic():
                    transaction_lock("x", timeout=1)
                assert not free()
            assert free()

        def test_a_rollback_to_a_savepoint_releases_what_came_after_it(self):
            with transaction.atomic():
                transaction_lock("x", timeout=1)
                with self.assertRaises(ZeroDivisionError), transaction.atomic():
                    transaction_lock("y", timeout=1)
                    assert not free("y")
                    raise ZeroDivisionError
                assert free("y")
                assert not free("x")

        def test_a_timeout_leaves_the_transaction_usable(self):
            taken, end = threading.Event(), threading.Event()

            def hold():
                with atomic_lock("x"):
                    taken.set()
                    end.wait(30)

            thread = threading.Thread(target=lambda: elsewhere(hold))
            thread.start()
            assert taken.wait(30)
            with transaction.atomic():
                Stock.objects.create()
                with self.assertRaises(AcquireTimeout):
                    transaction_lock("x", timeout=0.1)
                Stock.objects.create()
            end.set()
            thread.join()
            assert Stock.objects.count() == 2

        def test_shared(self):
            with transaction.atomic():
                transaction_lock("x", shared=True)

                def also():
                    with transaction.atomic():
                        transaction_lock("x", shared=True, timeout=0)

                elsewhere(also)
                assert not free()

        def test_no_transaction_is_refused(self):
            with self.assertRaisesRegex(TransactionManagementError, "atomic"):
                transaction_lock("x")

        def test_a_snapshot_is_refused(self):
            with transaction.atomic():
                connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                with self.assertRaisesRegex(Unsupported, "READ COMMITTED"):
                    transaction_lock("x")

        def test_with_autocommit_off_it_lasts_to_the_commit(self):
            with autocommit_off():
                with atomic_lock("x", timeout=1):
                    Stock.objects.create()
                assert not free()
                transaction.commit()
                assert free()

    if VENDOR == "mysql":

        def test_with_autocommit_off_it_is_refused(self):
            """The end of its block would not be the commit."""
            with autocommit_off(), self.assertRaisesRegex(Unsupported, "autocommit"), atomic_lock("x", timeout=1):
                Stock.objects.create()
            assert free()

        def test_it_must_be_the_outermost_block(self):
            with transaction.atomic(), self.assertRaisesRegex(Unsupported, "outermost"), atomic_lock("x"):
                pass
            with transaction.atomic(), self.assertRaisesRegex(Unsupported, "atomic_lock"):
                transaction_lock("x")

        def test_blocks_inside_it_do_not_release_it(self):
            with atomic_lock("x", timeout=1):
                with self.assertRaises(ZeroDivisionError), transaction.atomic():
                    raise ZeroDivisionError
                with transaction.atomic():
                    pass
                assert not free()
            assert free()


class InATestCase(TestCase):
    """The block of a test case does not count."""

    if VENDOR != "sqlite":

        def test_a_lock(self):
            with atomic_lock("x", timeout=1):
                Stock.objects.create()


def end_session():
    """End this connection's session, from another one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if VENDOR == "postgresql" else "SELECT CONNECTION_ID()")
        ((number,),) = cursor.fetchall()

    def end():
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT pg_terminate_backend({number})" if VENDOR == "postgresql" else f"KILL {number}")

    elsewhere(end)
