"""Requests to an etcd cluster over its HTTP/JSON gateway: the member to ask, the user's token, the deadline.

A request goes to one member. If there is no connection to it, nothing was sent, and the next member is asked at
once. If the member says that it cannot do it *now* (no leader, overloaded), the next one is asked after a pause. If the
answer does not come, nobody knows, and that is what the caller is told; his repetition goes to the next member.

Every request says that it needs a leader (``hasleader``): a member that has lost the others then refuses at once
instead of trying for seconds.
"""

from __future__ import annotations

import json
from typing import Any

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import Secret, Veiled
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.etcd.connection.errors import Barred, Meaning, Refused, read
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.aio import AioHttp
from leasehold.stores.etcd.http.base import Http, Place, Request, Stream, Unanswered, Unsent
from leasehold.stores.etcd.http.blocking import BlockingHttp

OLDEST = (3, 4)
"""Oldest server that has all that is used: the gateway under ``/v3`` and ranges in comparisons."""

PAUSE = 0.03
"""First pause before a member is asked again that could not do it now; each further one is twice as long."""

LONGEST_PAUSE = 0.5

LEAST_SHARE = 0.5
"""Seconds that one of several members gets at least to answer, before the caller may turn to the next."""

NOBODY = Secret("")
"""The token of a client that has none."""

NEEDS_LEADER = ("Grpc-Metadata-hasleader", "true")

MAY_SPEAK_TLS = "if it speaks TLS, write etcds://"
MAY_NOT_SPEAK_TLS = "if it does not speak TLS on this port, write etcd:// instead of etcds://"

HINTS = {
    "mismatch": "its certificate is for another host name; use that name, or a certificate with this one",
    "CERTIFICATE_VERIFY_FAILED": "name the authority that signed its certificate with ssl_ca_certs=FILE",
    "CERTIFICATE_REQUIRED": "it wants a client certificate; name it with ssl_certfile=FILE and ssl_keyfile=FILE",
    "bad certificate": "it wants a client certificate; name it with ssl_certfile=FILE and ssl_keyfile=FILE",
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port; write etcd:// instead of etcds://",
    "UNEXPECTED_EOF": "it hung up; if it does not speak TLS on this port, write etcd:// instead of etcds://",
    "closed (EOF)": "it hung up; if it does not speak TLS on this port, write etcd:// instead of etcds://",
    "record layer failure": "it does not speak TLS on this port; write etcd:// instead of etcds://",
    "onnection refused": "nobody listens there; check host and port, and that the server runs",
    "Connect call failed": "nobody listens there; check host and port, and that the server runs",
    "Name or service not known": "the host name is unknown; check its spelling and the DNS",
    "No address associated": "the host name has no address; check its spelling and the DNS",
    "emporary failure in name resolution": "the DNS does not answer",
    "it closed the connection": f"{MAY_SPEAK_TLS}; and look whether it wants a client certificate",
    "reset by peer": f"{MAY_SPEAK_TLS}; and look whether it wants a client certificate",
}
"""What to do about a connection that fails, by words of the error."""

TOO_SLOW = "etcd is too slow: another request of this client, which this one needs, has no answer yet"

SILENCE = "look whether its members are up, reachable and not overloaded"


class Gateway:
    """One cluster, seen from one client. Used from many threads or tasks at once."""

    def __init__(self, runtime: Runtime, settings: Settings, http: Http | None = None) -> None:
        """Make one; ``http`` has the connections, if they are not those of the runtime's flavor."""
        self._runtime = runtime
        self._settings = settings
        blocks = runtime.flavor is Flavor.SYNC
        self._http: Http = http or (BlockingHttp(runtime) if blocks else AioHttp(runtime))
        self._forget()

    def _forget(self) -> None:
        self._turns = KeyedLock(self._runtime, TOO_SLOW)
        self._current = 0
        self._watched = self._settings.places[0]
        self._token = NOBODY
        self.version = ""

    async def call(self, path: str, body: dict[str, Any], *, within: float, urgent: bool = False) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            Refused: etcd answered with an error of the kinds that the store must deal with: lease, exists, compacted.
            StoreUnavailable: any other error, or no answer.
            Unsupported: the server is too old.

        """
        until = self._runtime.now() + within
        await self._ready(until)
        return await self._call(path, body, until, urgent=urgent)

    async def watch(self, body: dict[str, Any], *, within: float) -> Stream:
        """Open a stream of answers to one request."""
        until = self._runtime.now() + within
        await self._ready(until)
        place = self._watched = self._place()
        request = self._request("/v3/watch", body)
        try:
            status, stream = await self._http.stream(place, request, within=until - self._runtime.now())
        except (Unsent, Unanswered) as error:
            self._turn_from(place)
            raise self._silent(error, place, unknown=False) from None
        if status != 200:
            text = await self._rest(stream)
            stream.close()
            self._turn_from(place)
            if "invalid auth token" in text:
                self._token = NOBODY
            raise StoreUnavailable(f"etcd at {place} does not let us watch: {text or f'HTTP status {status}'}")
        return stream

    def turn_from_watched(self) -> None:
        """Watch at another member from now on: this one ended it, or told nothing."""
        self._turn_from(self._watched)

    async def get(self, path: str, place: Place, *, within: float) -> dict[str, Any]:
        """Ask one member for a page that it shows to everybody, as ``/version``."""
        reply = await self._http.ask(place, Request("GET", path), within=within)
        answer = read(reply)
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def at(self, place: Place, path: str, body: dict[str, Any], *, within: float) -> dict[str, Any]:
        """Send a request to one member and no other."""
        request = self._request(path, body, leader=False)
        answer = read(await self._http.ask(place, request, within=within))
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    def after_fork(self) -> None:
        """Start anew in a forked child."""
        self._http.after_fork()
        self._forget()

    # --- one request -------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: dict[str, Any], until: float, *, urgent: bool = False) -> dict[str, Any]:
        pause, deaf, logins = PAUSE, 0, 0
        while True:
            place, token = self._place(), self._token
            try:
                request = self._request(path, body)
                reply = await self._http.ask(place, request, within=self._share(until), urgent=urgent)
            except Unsent as error:
                deaf += 1
                self._turn_from(place)
                if deaf >= len(self._settings.places) or self._runtime.now() >= until:
                    raise self._silent(error, place, unknown=False) from None
                continue
            except Unanswered as error:
                self._turn_from(place)
                raise self._silent(error, place, unknown=True) from None
            answer = read(reply)
            if not isinstance(answer, Refused):
                return answer
            if answer.meaning is Meaning.LOGIN and logins < 3:
                logins += 1
                await self._log_in(until, instead_of=token)
            elif answer.meaning is Meaning.ELSEWHERE and self._runtime.now() + pause < until:
                self._turn_from(place)
                await self._runtime.sleep(pause * (0.5 + self._runtime.jitter() / 2))
                pause, deaf = min(2 * pause, LONGEST_PAUSE), 0
            elif answer.meaning in (Meaning.LEASE, Meaning.EXISTS, Meaning.COMPACTED):
                raise answer
            else:
                if answer.meaning is Meaning.UNKNOWN:
                    self._turn_from(place)
                raise answer.unavailable(str(place))

    def _share(self, until: float) -> float:
        """Return how long one member may take: one that is stalled must leave time for the others."""
        left = until - self._runtime.now()
        return max(left / len(self._settings.places), min(left, LEAST_SHARE), 0.001)

    def _place(self) -> Place:
        return self._settings.places[self._current % len(self._settings.places)]

    def _turn_from(self, place: Place) -> None:
        """Ask the next member from now on, unless somebody did so before."""
        if self._place() is place:
            self._current += 1

    def _request(self, path: str, body: dict[str, Any], *, leader: bool = True) -> Request:
        headers = list[tuple[str, str]]([NEEDS_LEADER] if leader else [])
        if self._token is not NOBODY:
            headers.append(("Authorization", self._token.reveal()))
        return Request("POST", path, headers, json.dumps(body).encode())

    def _silent(self, error: Exception, place: Place, *, unknown: bool) -> StoreUnavailable:
        text = str(error)
        hint = next((hint for words, hint in HINTS.items() if words in text), SILENCE)
        if place.tls is not None:
            hint = hint.replace(MAY_SPEAK_TLS, MAY_NOT_SPEAK_TLS)
        what = "did not answer" if unknown else "cannot be reached"
        return StoreUnavailable(f"etcd at {place} {what}: {text}; {hint}", unknown=unknown)

    async def _rest(self, stream: Stream) -> str:
        try:
            return (await stream.read(1.0)).decode("utf-8", "replace").strip()[:300]
        except Unanswered:
            return ""

    # --- at the start ------------------------------------------------------------------------------------------

    async def _ready(self, until: float) -> None:
        """Know the server's version, and have a token if there is a user."""
        if not self.version:
            async with self._turns.turn("version", until):
                if not self.version:
                    self.version = await self._asked_version(until)
        if self._settings.username and self._token is NOBODY:
            await self._log_in(until, instead_of=NOBODY)

    async def _asked_version(self, until: float) -> str:
        failed = StoreUnavailable("etcd was not asked")
        for _ in self._settings.places:
            place = self._place()
            try:
                said = await self.get("/version", place, within=self._share(until))
            except (Unsent, Unanswered) as error:
                self._turn_from(place)
                failed = self._silent(error, place, unknown=False)
                continue
            except Refused:
                said = {}
            version = str(said.get("etcdserver", ""))
            numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
            if not version:
                raise Barred(f"the server at {place} does not say that it is etcd; check host and port")
            if numbers < OLDEST:
                raise Unsupported(f"the server at {place} is etcd {version}; locks need etcd 3.4 or later")
            return version
        raise failed

    async def _log_in(self, until: float, *, instead_of: Secret) -> None:
        """Get a token, once for all who need it."""
        async with self._turns.turn("login", until):
            if self._token is not instead_of:
                return
            self._token = NOBODY
            who = Veiled(name=self._settings.username or "", password=self._settings.password.reveal())
            said = await self._call("/v3/auth/authenticate", who, until)
            self._token = Secret(str(said["token"]))
