"""`manage.py leasehold`, the mixin for commands, the page of the admin, and the tables."""

import io
import json
import tempfile
from unittest import mock

from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from leasehold import LeaseLost, StoreUnavailable
from leasehold.integrations.django import locks
from leasehold.integrations.django.commands import RunOnceMixin

FOLDER = tempfile.mkdtemp()
LEASEHOLD = {
    "default": {"URL": f"sqlite:{FOLDER}/one.db", "NAMESPACE": "shop"},
    "other": {"URL": f"sqlite:{FOLDER}/two.db"},
}


def leasehold(*arguments):
    out, code = io.StringIO(), 0
    try:
        call_command("leasehold", *arguments, stdout=out)
    except SystemExit as end:
        code = end.code or 0
    return code, out.getvalue()


@override_settings(LEASEHOLD=LEASEHOLD)
class CommandLine(SimpleTestCase):
    def tearDown(self):
        locks.close_all()

    def test_ls_show_break_doctor(self):
        with locks["default"].lock("order:1", meta="hello", timeout=1), locks["other"].lock("else", timeout=1):
            code, text = leasehold("ls", "--json", "order:")
            assert (code, [each["name"] for each in json.loads(text)]) == (0, ["order:1"])
            assert "else" in leasehold("--store", "other", "ls")[1]
            code, text = leasehold("show", "order:1")
            assert code == 0
            assert "hello" in text
            assert leasehold("show", "order:2")[0] == 1
            assert "one.db" in leasehold("doctor", "--fail-on", "error")[1]
        hold = locks.lock("order:1").acquire()
        code, text = leasehold("break", "order:1", "--token", str(hold.token))
        assert code == 0, text
        assert locks.inspect("order:1") is None
        assert leasehold("break", "order:1", "--yes")[0] == 1

    def test_an_unknown_store(self):
        with self.assertRaisesRegex(CommandError, "LEASEHOLD has no 'x'"):
            call_command("leasehold", "--store", "x", "ls")


class Once(RunOnceMixin, BaseCommand):
    lock_name = "once"
    requires_system_checks = ()
    answer = "done"

    def handle(self, **options):
        self.seen = self.hold
        if callable(self.answer):
            return self.answer()
        return self.answer


@override_settings(LEASEHOLD=LEASEHOLD)
class Commands(SimpleTestCase):
    def tearDown(self):
        locks.close_all()

    def run_it(self, **attributes):
        self.out, self.err = io.StringIO(), io.StringIO()
        plain = {key: staticmethod(each) if callable(each) else each for key, each in attributes.items()}
        command = type("Command", (Once,), plain)(stdout=self.out, stderr=self.err)
        result = call_command(command)
        return result, command

    def test_it_runs_under_the_lock(self):
        result, command = self.run_it(answer=lambda: f"held {locks.inspect('once') is not None}")
        assert result == "held True"
        assert command.seen.token > 0
        assert command.hold is None
        assert locks.inspect("once") is None

    def test_skip_wait_fail(self):
        with locks["default"].lock("once"):
            assert self.run_it()[0] is None
            assert "skipped" in self.err.getvalue()
            for busy, timeout in (("fail", None), ("wait", 0.1)):
                with self.assertRaises(CommandError) as failed:
                    self.run_it(lock_busy=busy, lock_timeout=timeout)
                assert failed.exception.returncode == 75
        assert self.run_it(lock_busy="wait")[0] == "done"

    def test_it_is_skipped_though_nobody_knows_which_process_runs_it(self):
        client = locks["default"]
        with client.lock("once"), mock.patch.object(client, "inspect", side_effect=StoreUnavailable("it is down")):
            assert self.run_it()[0] is None
            assert "skipped" in self.err.getvalue()
            with self.assertRaises(CommandError) as failed:
                self.run_it(lock_busy="fail")
            assert failed.exception.returncode == 75

    def test_once_within(self):
        attributes = {"lock_name": "nightly", "once_within": 30}
        assert self.run_it(**attributes)[0] == "done"
        assert self.run_it(**attributes)[0] is None
        assert "has just run" in self.err.getvalue()

    def test_a_lock_that_is_lost(self):
        def lose():
            locks.force_release("once", locks.inspect("once").holders[0].token)

        with self.assertRaises(CommandError) as failed:
            self.run_it(answer=lose)
        assert failed.exception.returncode == 76

    def test_a_lock_that_was_lost_before_the_command_began(self):
        client, error = locks["default"], LeaseLost("its grant came too late", name="once")
        late = mock.Mock(acquire=mock.Mock(side_effect=error), run=mock.Mock(side_effect=error))
        for attributes in ({}, {"once_within": 30}):
            with mock.patch.multiple(client, lock=mock.Mock(return_value=late), scheduled=mock.Mock(return_value=late)):
                with self.assertRaises(CommandError) as failed:
                    self.run_it(answer=self.fail, **attributes)
                assert failed.exception.returncode == 69

    def test_a_run_of_a_cron_job_that_is_lost(self):
        def lose():
            locks.force_release("scheduled/once", locks.inspect("scheduled/once").holders[0].token)

        with self.assertRaises(CommandError) as failed:
            self.run_it(answer=lose, once_within=30)
        assert failed.exception.returncode == 76

    def test_the_loss_of_another_lock_is_an_error_of_the_command(self):
        def fail():
            raise LeaseLost("the lease was lost", name="another")

        for attributes in ({}, {"once_within": 30}):
            with self.assertRaises(LeaseLost):
                self.run_it(answer=fail, **{"lock_name": f"other {attributes}", **attributes})

    def test_a_skipped_command_says_so_where_its_caller_reads(self):
        given = io.StringIO()
        command = Once(stderr=io.StringIO())
        with locks["default"].lock("once"):
            call_command(command, stderr=given)
        assert given.getvalue().endswith("has just run: skipped\n")

    def test_an_error_of_the_command_is_its_own(self):
        def fail():
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.run_it(answer=fail)
        assert locks.inspect("once") is None


@override_settings(LEASEHOLD=LEASEHOLD)
class Admin(TestCase):
    URL = "/admin/leasehold/heldlock/"

    def tearDown(self):
        locks.close_all()

    def test_the_list(self):
        self.client.force_login(User.objects.create_superuser("root"))
        meta = {"by": "<script>alert(1)</script>"}
        with locks.lock("<b>order</b>:1", meta=meta, timeout=1), locks["other"].lock("stock:2", timeout=1):
            page = self.client.get(self.URL).content.decode()
            assert "&lt;b&gt;order&lt;/b&gt;:1" in page
            assert "<script>alert" not in page
            assert "stock:2" in page
            assert "stock:2" not in self.client.get(self.URL, {"q": "<b>"}).content.decode()
            assert self.client.get("/admin/").status_code == 200
            assert "Held locks" in self.client.get("/admin/").content.decode()

    def test_who_may_see_it(self):
        user = User.objects.create_user("clerk", is_staff=True)
        self.client.force_login(user)
        assert self.client.get(self.URL).status_code == 403
        user.user_permissions.add(Permission.objects.get(codename="view_heldlock"))
        assert self.client.get(self.URL).status_code == 200
        for other in ("add/", "x/change/", "x/delete/"):
            assert self.client.get(self.URL + other).status_code == 404
        self.client.logout()
        assert self.client.get(self.URL).status_code == 302

    def test_a_store_that_is_down(self):
        self.client.force_login(User.objects.create_superuser("root"))
        with override_settings(LEASEHOLD={"default": {"URL": "redis://:s3cret@127.0.0.1:1"}}):
            answer = self.client.get(self.URL)
            assert answer.status_code == 200
            assert "127.0.0.1:1" in answer.content.decode()
            assert "s3cret" not in answer.content.decode()


class Tables(TransactionTestCase):
    """Those of the migration, with a store in Django's own database, whose test database is another."""

    if connection.vendor in ("postgresql", "mysql"):

        @override_settings(LEASEHOLD={"default": {"DATABASE": "default"}})
        def test_a_store_in_the_database(self):
            try:
                with locks.lock("x", timeout=1) as hold, connection.cursor() as cursor:
                    cursor.execute("SELECT holder_token FROM leasehold_name WHERE holder <> ''")
                    assert cursor.fetchall() in ([(hold.token,)], ((hold.token,),))
                assert not [each for each in locks.diagnose() if each.severity > 2]
            finally:
                locks.close_all()
