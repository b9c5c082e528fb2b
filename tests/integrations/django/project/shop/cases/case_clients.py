"""`locks` and `alocks`, by the settings."""

import asyncio
import gc
import os
import tempfile
import weakref
from unittest.mock import patch

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import SimpleTestCase, override_settings

from leasehold import Client
from leasehold.integrations.django import alocks, locks
from leasehold.integrations.django.checks import check_settings, check_stores

FOLDER = tempfile.mkdtemp()
ONE = {"default": {"URL": f"sqlite:{FOLDER}/one.db", "NAMESPACE": "shop"}}
TWO = {**ONE, "other": {"URL": f"sqlite:{FOLDER}/two.db"}}


@override_settings(LEASEHOLD=TWO)
class Clients(SimpleTestCase):
    def tearDown(self):
        locks.close_all()

    def test_by_alias(self):
        with locks.lock("x", timeout=1) as hold:
            assert locks["default"].inspect("x").token == hold.token
            assert locks["other"].inspect("x") is None
            with Client.from_url(ONE["default"]["URL"], namespace="shop") as same:
                assert same.inspect("x") is not None
        assert locks["default"] is locks["default"]
        assert list(locks) == ["default", "other"]

    def test_an_unknown_alias(self):
        with self.assertRaisesRegex(ImproperlyConfigured, "did you mean 'other'"):
            locks["othr"]

    def test_other_settings_make_other_clients(self):
        first = locks["default"]
        with override_settings(LEASEHOLD={"default": TWO["other"]}):
            assert locks["default"] is not first
        with self.settings(LEASEHOLD={}), self.assertRaisesRegex(ImproperlyConfigured, "LEASEHOLD is missing"):
            locks.lock("x")

    def test_async_clients_are_closed_with_their_loops(self):
        seen = []

        async def view():
            async with alocks.lock("x", timeout=1) as hold:
                assert hold.held
                assert alocks["default"] is alocks["default"]
                seen.append(weakref.ref(asyncio.get_running_loop()))
            seen.append(await alocks.lock("kept").acquire(timeout=1))  # released by the close

        for run in (lambda: asyncio.run(view()), async_to_sync(view)):
            run()
            assert locks.inspect("kept") is None
            assert len(alocks._loops) == 0
            seen.pop()
        gc.collect()

    def test_loops_that_were_closed_without_ending_their_generators_are_forgotten(self):
        async def view():
            async with alocks.lock("x", timeout=1):
                pass

        for _ in range(5):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(view())
            loop.close()
            assert len(alocks._loops) == 1
        asyncio.run(view())
        assert len(alocks._loops) == 0

    def test_clients_of_a_cancelled_loop_are_closed(self):
        async def view():
            await alocks.lock("kept").acquire(timeout=1)
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            async_to_sync(view)()
        assert locks.inspect("kept") is None

    def test_no_loop(self):
        with self.assertRaisesRegex(RuntimeError, "use locks in blocking code"):
            alocks.lock("x")

    async def test_bridged(self):
        async with alocks.lock("x", timeout=1):
            assert await sync_to_async(self._busy)()
        assert not await sync_to_async(self._busy)()

    def _busy(self):
        hold = locks.lock("x").acquire(blocking=False)
        if hold is not None:
            hold.release()
        return hold is None

    def test_a_fork(self):
        with locks.lock("of the parent", timeout=1):
            child = os.fork()
            if not child:
                code = 1
                try:
                    with locks.lock("of the child", timeout=5):
                        code = 0 if locks.lock("of the parent").acquire(blocking=False) is None else 2
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert locks.inspect("of the parent") is not None
        assert locks.inspect("of the child") is None


SECRET = "s3cret-pass"

WRONG = (
    ({"default": {"URL": f"redis://:{SECRET}@h:99999"}}, "port"),
    ({"default": {"URL": f"nosql://:{SECRET}@h"}}, "unknown scheme 'nosql'"),
    ({"default": {"URL": "redis://h", "TIMEOUT": 3}}, "no 'TIMEOUT'; did you mean 'RESPONSE_TIMEOUT'"),
    ({"default": {"url": "redis://h"}}, "did you mean 'URL'"),
    ({"default": {"URL": 5}}, "is a str, not int"),
    ({"default": {}}, "either 'URL'"),
    ({"default": {"URL": "memory:", "DATABASE": "default"}}, "either 'URL'"),
    ({"default": "redis://h"}, "is a mapping, not str"),
    ({"default": {"URL": "memory:", "RESPONSE_TIMEOUT": -1}}, "RESPONSE_TIMEOUT"),
    ({"default": {"URL": "memory:", "NAMESPACE": ""}}, "namespace is empty"),
    ({"default": {"URL": "memory:", "OBSERVER": "nowhere.observer"}}, "nowhere"),
    ({"default": {"URL": "memory:", "OBSERVER": 3}}, "a function of one event"),
    ({"default": {"DATABASE": "nowhere"}}, "DATABASES has no 'nowhere'"),
    ("redis://h", "is a mapping by alias, not str"),
    ({1: {}}, "which is no str"),
)


class Settings(SimpleTestCase):
    def test_each_mistake_is_named(self):
        for given, words in WRONG:
            with self.subTest(words=words), override_settings(LEASEHOLD=given):
                (found,) = check_settings()
                assert words in found.msg, found.msg
                assert SECRET not in str(found)
                assert found.id == "leasehold.E001"
                assert check_stores() == []
                with self.assertRaises(ImproperlyConfigured):
                    locks[next(iter(given)) if isinstance(given, dict) else "default"]

    def test_no_settings_are_no_mistake(self):
        with override_settings(LEASEHOLD={}):
            assert check_settings() == []

    def test_a_wrong_migrate(self):
        for given, words in (
            ({"ON": "nowhere"}, "'ON'"),
            ({"TIMEOUT": "soon"}, "TIMEOUT"),
            ({"POOLER": "transaction"}, "POOLER"),
            ({"on": None}, "did you mean 'ON'"),
        ):
            with self.subTest(words=words), override_settings(LEASEHOLD_MIGRATE=given):
                assert words in check_settings()[0].msg

    def test_an_observer_by_its_path(self):
        events = globals()["EVENTS"]
        given = {"default": {"URL": "memory:", "OBSERVER": "shop.cases.case_clients.observer"}}
        with override_settings(LEASEHOLD=given), locks.lock("x"):
            pass
        assert [type(event).__name__ for event in events] == ["Acquired", "Released"]

    def test_a_store_that_is_down_fails_the_deployment_check_and_no_other(self):
        with override_settings(LEASEHOLD={"default": {"URL": f"redis://:{SECRET}@127.0.0.1:1"}}):
            assert check_settings() == []
            (found,) = check_stores()
            assert found.id == "leasehold.E002"
            assert SECRET not in str(found)
            with self.assertRaises(CommandError) as failed:
                call_command("check", "--deploy", "--tag", "leasehold")
            assert "127.0.0.1:1" in str(failed.exception)
            call_command("check", "--tag", "leasehold")


EVENTS = []


def observer(event):
    EVENTS.append(event)


HARD = "a@b:c/d?e#f%g|h"

ADDRESSES = {
    "postgresql": (
        ({"HOST": "db", "PORT": 5433}, {"host": "db", "port": "5433", "user": "me", "password": HARD, "dbname": "a b"}),
        ({"HOST": "::1", "PORT": ""}, {"host": "::1", "password": HARD}),
        ({"HOST": "/var/run/pg", "PORT": "5433"}, {"host": "/var/run/pg", "port": "5433", "password": HARD}),
        ({"HOST": "", "PORT": "", "PASSWORD": ""}, {"user": "me", "dbname": "a b"}),
        ({"HOST": "db", "PORT": "", "OPTIONS": {"sslmode": "require", "pool": True}}, {"sslmode": "require"}),
    ),
    "mysql": (
        ({"HOST": "db", "PORT": 3307}, {"host": "db", "port": 3307, "user": "me", "password": HARD.encode()}),
        ({"HOST": "", "PORT": ""}, {"host": "localhost", "port": 3306, "database": "a b"}),
        ({"HOST": "/run/s", "PORT": "", "OPTIONS": {"charset": "utf8mb4"}}, {"unix_socket": "/run/s", "user": "me"}),
    ),
}


class Addresses(SimpleTestCase):
    """Where ``DATABASE`` leads to, by the settings of Django's database."""

    def opened(self, **given):
        from leasehold.integrations.django.conf import store_settings
        from leasehold.stores import registry

        usual = {"USER": "me", "PASSWORD": HARD, "NAME": "a b", "OPTIONS": {}}
        changed = patch.dict(connection.settings_dict, {**usual, **given})
        with changed, override_settings(LEASEHOLD={"default": {"DATABASE": "default"}}):
            return registry.opener(store_settings("default").url).settings.options

    def test_each_address(self):
        for given, expected in ADDRESSES.get(connection.vendor, ()):
            with self.subTest(given=given):
                options = self.opened(**given)
                assert {key: options.get(key) for key in expected} == expected

    def test_what_is_refused(self):
        if connection.vendor == "sqlite":
            with self.assertRaisesRegex(ImproperlyConfigured, "write 'URL'"):
                self.opened()
            return
        for given in ({"OPTIONS": {"unheard": 1}}, {"HOST": "", "OPTIONS": {"ssl": "yes"}}):
            with self.subTest(given=given), self.assertRaisesRegex(ImproperlyConfigured, "write 'URL'") as failed:
                self.opened(**given)
            assert HARD not in str(failed.exception)
