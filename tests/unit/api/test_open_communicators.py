"""Communicators that are open in a process: the one that `launch` asks for."""

from concurrent.futures import ThreadPoolExecutor

from ftcomm.api.open_communicators import OpenCommunicators, Routes

JOB, OTHER = (("127.0.0.1", 7000),), (("127.0.0.1", 7001),)


class Communicator:
    """One that is open until it is closed."""

    rank = 0
    is_usable = True

    def abort(self, reason: str) -> None:
        del reason

    def close(self) -> None:
        self.is_usable = False


def opened(places: OpenCommunicators, name: str | None, routes: Routes = ()) -> Communicator:
    with places.opening(name) as place:
        if routes:
            places.claim(place, "0", routes)
        return place.fill(Communicator())


def test_the_newest_is_that_of_the_job_that_is_followed() -> None:
    places = OpenCommunicators()
    places.follow(JOB)
    own = opened(places, None, JOB)
    others = [opened(places, "another", OTHER), opened(places, "alone")]
    assert places.newest is own
    own.close()
    assert places.newest is own
    assert places.usable() == others
    again = opened(places, None, JOB)
    assert places.newest is again


def test_a_thread_has_its_own_or_else_those_of_the_process() -> None:
    places = OpenCommunicators()
    assert places.of_thread() == []
    whole = opened(places, None)
    assert places.of_thread() == [whole]
    own = opened(places, "named")
    assert places.of_thread() == [own]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(places.of_thread).result() == [whole, own]
    own.close()
    assert places.of_thread() == [whole]
