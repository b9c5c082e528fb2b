"""Fenced updates by the ORM, on each database."""

import threading
from unittest import skipIf

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase

from leasehold.guards import Stale, sql
from shop.models import Fresh, Shelf, Stock, Unfenced


def by_another(pk, **changes):
    """Write to a row by another connection, and commit."""

    def write():
        try:
            Stock.objects.filter(pk=pk).fenced_update(**changes)
        finally:
            connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


class Fenced(TransactionTestCase):
    def test_an_older_holder_is_refused(self):
        item = Stock.objects.create()
        assert Stock.objects.filter(pk=item.pk).fenced_update(token=5, left_over=9) == 1
        assert Stock.objects.filter(pk=item.pk).fenced_update(token=5, left_over=8) == 1
        with self.assertRaises(Stale) as refused:
            Stock.objects.filter(pk=item.pk).fenced_update(token=4, left_over=7)
        assert (refused.exception.token, refused.exception.fence) == (4, 5)
        item.refresh_from_db()
        assert (item.left_over, item.fence) == (8, 5)

    def test_the_guard_for_any_connection_takes_that_of_django(self):
        item = Stock.objects.create()
        assert sql.update(connection, "shop_stock", {"left_over": 9}, where={"id": item.pk}, token=5) == 1
        with self.assertRaises(Stale):
            sql.update(connection, "shop_stock", {"left_over": 8}, where={"id": item.pk}, token=4)

    def test_all_rows_or_none(self):
        first, second = Stock.objects.create(), Stock.objects.create(fence=9)
        with transaction.atomic():
            Stock.objects.filter(pk=first.pk).update(left_over=3)
            with self.assertRaises(Stale):
                Stock.objects.all().fenced_update(token=4, left_over=1)
        first.refresh_from_db()
        second.refresh_from_db()
        assert (first.left_over, first.fence, second.left_over) == (3, 0, 10), "the outer block goes on"

    def test_no_row_is_no_error(self):
        assert Stock.objects.filter(pk=1).fenced_update(token=1, left_over=1) == 0

    def test_a_filter_on_what_is_changed(self):
        Stock.objects.create(left_over=1)
        assert Stock.objects.filter(left_over=1).order_by("left_over").fenced_update(token=2, left_over=0) == 1
        assert Stock.objects.get().fence == 2

    def test_what_is_refused(self):
        shelf = Shelf.objects.create(label="a")
        Stock.objects.create(shelf=shelf)
        cases = (
            (ValueError, "leave it out", lambda: Stock.objects.all().fenced_update(token=1, fence=3)),
            (ValueError, "another table", lambda: Stock.objects.filter(shelf__label="a").fenced_update(token=1)),
            (ValueError, "from 1", lambda: Stock.objects.all().fenced_update(token=0)),
            (TypeError, "hold.token", lambda: Stock.objects.all().fenced_update(token="1")),
            (TypeError, "slice", lambda: Stock.objects.all()[:1].fenced_update(token=1)),
            (ImproperlyConfigured, "one FenceField", lambda: Unfenced.objects.all().fenced_update(token=1)),
            (ValueError, "update the rows by that", lambda: Fresh.objects.all().fenced_update(token=1, days=2)),
            (ValueError, "update the rows by that", lambda: Fresh.objects.all().fenced_update(token=1, left_over=2)),
        )
        for error, words, call in cases:
            with self.subTest(words=words), self.assertRaisesRegex(error, words):
                call()
        assert Stock.objects.get().fence == 0

    async def test_async(self):
        item = await Stock.objects.acreate()
        assert await Stock.objects.filter(pk=item.pk).afenced_update(token=2, left_over=1) == 1
        with self.assertRaises(Stale):
            await Stock.objects.filter(pk=item.pk).afenced_update(token=1, left_over=0)

    @skipIf(connection.vendor == "sqlite", "a file has one writer, and a reader that has read keeps it out")
    def test_a_snapshot_that_is_older_than_the_newer_write(self):
        """At MySQL's REPEATABLE READ a plain read would not see it."""
        item = Stock.objects.create()
        with self.assertRaises(Stale), transaction.atomic():
            assert Stock.objects.get(pk=item.pk).fence == 0
            by_another(item.pk, token=7, left_over=7)
            Stock.objects.filter(pk=item.pk).fenced_update(token=6, left_over=6)
        assert Stock.objects.get().left_over == 7

    @skipIf(connection.vendor == "sqlite", "a file has one writer")
    def test_holders_at_the_same_time(self):
        """Whatever the order of their writes, the newest stays."""
        item = Stock.objects.create()
        tokens = list(range(1, 21))
        threads = [
            threading.Thread(target=ignore_stale, args=(item.pk, token)) for token in (tokens[::2] + tokens[::-2])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        item.refresh_from_db()
        assert (item.left_over, item.fence) == (20, 20)


def ignore_stale(pk, token):
    try:
        for _ in range(50):
            try:
                Stock.objects.filter(pk=pk).fenced_update(token=token, left_over=token)
                return
            except OperationalError:  # a deadlock of the server: again
                continue
    except Stale:
        pass
    finally:
        connection.close()
