"""Requests to an etcd cluster over its HTTP/JSON gateway: the choice of the member, the user's token, the deadline.

A request goes to one member. If no connection can be made, or the response is not one of etcd's gateway, nothing was
done, and the next member is tried at once. If the member reports that it cannot do it *now* (no leader, overloaded),
the next one is tried after a pause. If no response comes, the outcome is unknown, and the caller gets that error. Its
retry goes to the next member.

Every request requires a leader (``hasleader``). So a member that has lost the others refuses at once, instead of trying
for seconds.
"""

from __future__ import annotations

import json

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import Secret, Veiled
from leasehold.errors import Outcome, StoreRefused, StoreUnavailable, Unsupported
from leasehold.stores._common.answers import with_remedy
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.etcd.connection.errors import NO_GATEWAY, Meaning, Refused, read
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.aio import AioHttp
from leasehold.stores.etcd.http.base import Endpoint, Http, Request, Stream, Unanswered, Unsent
from leasehold.stores.etcd.http.blocking import BlockingHttp
from leasehold.stores.etcd.keys import Json

OLDEST = (3, 4)
"""Oldest server that supports what is used: the gateway under ``/v3`` and ranges in comparisons."""

PAUSE = 0.03
"""First pause before a retry, in seconds; each further one is twice as long."""

LONGEST_PAUSE = 0.5

LEAST_SHARE = 0.5
"""Least seconds that one of several members has to respond, before the next one is tried."""

NO_TOKEN = Secret("")
"""Stands for a missing token."""

VERSION = "/version"
LOGIN = "/v3/auth/authenticate"

OF_PROXIES = (500, 502, 503, 504)
"""Statuses of a proxy whose server is away, or of a server that cannot answer now."""

NEEDS_LEADER = ("Grpc-Metadata-hasleader", "true")

MAY_SPEAK_TLS = "if it speaks TLS, write etcds://"
MAY_NOT_SPEAK_TLS = "if it does not speak TLS on this port, write etcd:// instead of etcds://"
SPEAKS_NO_TLS = "it does not speak TLS on this port; write etcd:// instead of etcds://"
WANTS_CERTIFICATE = "it wants a client certificate; name it with ssl_certfile=FILE and ssl_keyfile=FILE"
NOBODY = "nobody listens there; check host and port, and that the server runs"

HINTS = {
    "mismatch": "its certificate is for another host name; use that name, or a certificate with this one",
    "CERTIFICATE_VERIFY_FAILED": "name the authority that signed its certificate with ssl_ca_certs=FILE",
    "CERTIFICATE_REQUIRED": WANTS_CERTIFICATE,
    "bad certificate": WANTS_CERTIFICATE,
    "WRONG_VERSION_NUMBER": SPEAKS_NO_TLS,
    "UNEXPECTED_EOF": f"it closed the connection; {MAY_NOT_SPEAK_TLS}",
    "closed (EOF)": f"it closed the connection; {MAY_NOT_SPEAK_TLS}",
    "record layer failure": SPEAKS_NO_TLS,
    "onnection refused": NOBODY,
    "Connect call failed": NOBODY,
    "Name or service not known": "the host name is unknown; check its spelling and the DNS",
    "No address associated": "the host name has no address; check its spelling and the DNS",
    "emporary failure in name resolution": "the DNS does not answer",
    "it closed the connection": f"{MAY_SPEAK_TLS}; and look whether it wants a client certificate",
    "reset by peer": f"{MAY_SPEAK_TLS}; and look whether it wants a client certificate",
}
"""The remedy for a failed connection, by words of the error."""

TOO_SLOW = "etcd is too slow: another request of this client, which this one needs, has no answer yet"

PROXY_HINT = "check that this member runs, and the proxy before it, if there is one"

NO_ANSWER_HINT = "check that its members run, are reachable and not overloaded"


class Gateway:
    """The connection of one client to one cluster. Safe to use from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, settings: Settings, http: Http | None = None) -> None:
        """Make one; ``http`` replaces the connections of the runtime's flavor."""
        self._runtime = runtime
        self._settings = settings
        blocks = runtime.flavor is Flavor.SYNC
        self._http: Http = http or (BlockingHttp(runtime) if blocks else AioHttp(runtime))
        self._forget()

    def _forget(self) -> None:
        self._locks = KeyedLock(self._runtime, TOO_SLOW)
        self._current = 0
        self._watched = self._settings.endpoints[0]
        self._token = NO_TOKEN
        self.version = ""

    async def call(self, path: str, body: Json, until: float, *, urgent: bool = False) -> Json:
        """Send a request and return the response, before the boot-time clock shows ``until``.

        Raises:
            Refused: the lease has ended; or, of a grant, it exists.
            StoreUnavailable: any other error, or no response.
            Unsupported: the server is too old.
        """
        await self._ready(until)
        return await self._call(path, body, until, urgent=urgent)

    async def watch(self, body: Json, until: float) -> Stream:
        """Open a watch: a stream of responses to one request."""
        await self._ready(until)
        endpoint = self._watched = self._endpoint()
        request = self._request("/v3/watch", body, self._token)
        try:
            status, stream = await self._http.stream(endpoint, request, until)
        except (Unsent, Unanswered) as error:
            self._leave_endpoint(endpoint)
            raise self._no_answer(error, endpoint, unknown=False) from None
        if status != 200:
            text = await self._error_text(stream)
            stream.close()
            self._leave_endpoint(endpoint)
            if "invalid auth token" in text:
                self._token = NO_TOKEN
            raise StoreUnavailable(f"etcd at {endpoint} refused the watch: {text or f'HTTP status {status}'}")
        return stream

    def leave_watched_endpoint(self) -> None:
        """Use another member for the watch: this one ended it, or missed a deletion."""
        self._leave_endpoint(self._watched)

    def forget_token(self) -> bool:
        """Get another token for the next request; return False if there is no user."""
        self._token = NO_TOKEN
        return self._settings.username is not None

    async def at(self, endpoint: Endpoint, path: str, until: float) -> Json:
        """Send a request without arguments to one member and no other; ``/version`` is a public page."""
        request = Request("GET", path) if path == VERSION else self._request(path, {}, self._token, leader=False)
        answer = read(await self._http.ask(endpoint, request, until))
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def close(self) -> None:
        await self._http.close()

    def after_fork(self) -> None:
        """Forget connections and token in a forked child."""
        self._http.after_fork()
        self._forget()

    # --- one request -------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Json, until: float, *, urgent: bool = False) -> Json:
        pause, failed, logins = PAUSE, list[StoreUnavailable](), 0
        while True:
            while (token := self._token) is NO_TOKEN and self._settings.username and path != LOGIN:
                await self._log_in(until, instead_of=NO_TOKEN)  # the watch may forget a token at any time
            endpoint = self._endpoint()
            try:
                request = self._request(path, body, token)
                reply = await self._http.ask(endpoint, request, self._share_of(until), urgent=urgent)
            except Unsent as error:
                self._try_next(endpoint, self._no_answer(error, endpoint, unknown=False), failed, until)
                continue
            except Unanswered as error:
                self._leave_endpoint(endpoint)
                raise self._no_answer(error, endpoint, unknown=True) from None
            answer = read(reply)
            if not isinstance(answer, Refused):
                return answer
            if answer.meaning is Meaning.LOGIN and logins < 3:
                logins += 1
                await self._log_in(until, instead_of=token)
            elif answer.meaning is Meaning.ELSEWHERE and self._runtime.now() + pause < until:
                self._leave_endpoint(endpoint)
                await self._runtime.sleep(pause * (0.5 + self._runtime.jitter() / 2))
                pause = min(2 * pause, LONGEST_PAUSE)
                failed.clear()
            elif answer.fault is NO_GATEWAY:
                self._try_next(endpoint, answer.unavailable(str(endpoint)), failed, until)
            elif answer.meaning in (Meaning.LEASE, Meaning.EXISTS):
                raise answer
            else:
                if answer.meaning is Meaning.UNKNOWN:
                    self._leave_endpoint(endpoint)
                raise answer.unavailable(str(endpoint))

    def _try_next(
        self, endpoint: Endpoint, error: StoreUnavailable, failed: list[StoreUnavailable], until: float
    ) -> None:
        """Leave a member that did nothing; if none is left, raise the error of one that may be etcd, if any."""
        self._leave_endpoint(endpoint)
        failed.append(error)
        if len(failed) >= len(self._settings.endpoints) or self._runtime.now() >= until:
            raise next((one for one in reversed(failed) if not one.lasting), error) from None

    def _share_of(self, until: float) -> float:
        """Return the deadline for one member: a stalled one must leave time for the others."""
        now = self._runtime.now()
        left = until - now
        return now + max(left / len(self._settings.endpoints), min(left, LEAST_SHARE), 0.001)

    def _endpoint(self) -> Endpoint:
        return self._settings.endpoints[self._current % len(self._settings.endpoints)]

    def _leave_endpoint(self, endpoint: Endpoint) -> None:
        """Use the next member from now on, unless another caller has changed it already."""
        if self._endpoint() is endpoint:
            self._current += 1

    def _request(self, path: str, body: Json, token: Secret, *, leader: bool = True) -> Request:
        headers = list[tuple[str, str]]([NEEDS_LEADER] if leader else [])
        if token is not NO_TOKEN:
            headers.append(("Authorization", token.reveal()))
        return Request("POST", path, headers, json.dumps(body).encode())

    def _no_answer(self, error: Exception, endpoint: Endpoint, *, unknown: bool) -> StoreUnavailable:
        text = str(error)
        hint = next((hint for words, hint in HINTS.items() if words in text), NO_ANSWER_HINT)
        if endpoint.tls is not None:
            hint = hint.replace(MAY_SPEAK_TLS, MAY_NOT_SPEAK_TLS)
        what = "did not answer" if unknown else "cannot be reached"
        return StoreUnavailable(with_remedy(f"etcd at {endpoint} {what}: {text}", hint), unknown=unknown)

    async def _error_text(self, stream: Stream) -> str:
        try:
            return (await stream.read(1.0)).decode("utf-8", "replace").strip()[:300]
        except Unanswered:
            return ""

    # --- at the start ------------------------------------------------------------------------------------------

    async def _ready(self, until: float) -> None:
        """Read the server's version, and log in if there is a user, unless that was done before."""
        if not self.version:
            async with self._locks.hold("version", until):
                if not self.version:
                    self.version = await self._read_version(until)
        if self._settings.username and self._token is NO_TOKEN:
            await self._log_in(until, instead_of=NO_TOKEN)

    async def _read_version(self, until: float) -> str:
        failed = StoreUnavailable("no member of etcd was tried")
        for number in range(len(self._settings.endpoints)):
            endpoint = self._endpoint()
            try:
                return await self._version_of(endpoint, self._share_of(until))
            except StoreUnavailable as error:
                self._leave_endpoint(endpoint)
                if number == 0 or not error.lasting:  # that of a member that may be etcd, if there is one
                    failed = error
        raise failed

    async def _version_of(self, endpoint: Endpoint, until: float) -> str:
        try:
            reply = await self._http.ask(endpoint, Request("GET", VERSION), until)
        except (Unsent, Unanswered) as error:
            raise self._no_answer(error, endpoint, unknown=False) from None
        if reply.status in OF_PROXIES:
            what = f"etcd at {endpoint} answered a request for its version with HTTP status {reply.status}"
            raise StoreRefused(with_remedy(what, PROXY_HINT), outcome=Outcome.NOT_APPLIED)
        answer = read(reply)
        version = "" if isinstance(answer, Refused) else str(answer.get("etcdserver", ""))
        if not version:
            raise StoreRefused(f"the server at {endpoint} is not etcd; check host and port")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
            raise Unsupported(f"the server at {endpoint} is etcd {version}; locks need etcd 3.4 or later")
        return version

    async def _log_in(self, until: float, *, instead_of: Secret) -> None:
        """Get a new token, once for all callers that need it."""
        async with self._locks.hold("login", until):
            if self._token is not instead_of:
                return
            self._token = NO_TOKEN
            who = Veiled(name=self._settings.username or "", password=self._settings.password.reveal())
            fields = await self._call(LOGIN, who, until)
            self._token = Secret(str(fields["token"]))
