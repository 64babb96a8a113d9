"""A process that checks events: it is asked with lists of CARs, and answers with facts.

For each CAR it answers (1, the facts) or (0, a bug's text). See `recon_node.processes`.
"""

from recon_node.processes.process import answer_requests
from recon_node.verification.facts import check_event, to_wire


def main() -> None:
    """Answer requests until standard input ends."""
    answer_requests(_answer)


def _answer(cars: list[bytes]) -> list[tuple[int, object]]:
    return [_check(car) for car in cars]


def _check(car: bytes) -> tuple[int, object]:
    try:
        return 1, to_wire(check_event(car), car)
    except Exception as error:  # a bug: one event must not take the others with it
        return 0, repr(error)


if __name__ == "__main__":
    main()
