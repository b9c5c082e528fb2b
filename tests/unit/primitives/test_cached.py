"""A cached value whose time to live is looked up with the same client."""

from leasehold import Client


def test_the_function_for_the_time_to_live_may_use_the_client() -> None:
    with Client.from_url("memory:") as client:
        seconds = client.versioned("seconds")
        seconds.put(60)
        assert client.cached("token", lambda value: seconds.get().value, lambda: "new").get() == "new"
