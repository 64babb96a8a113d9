"""Settings of the whole suite: Hypothesis profiles, and one printed seed for the rest."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import settings

from recon_node.store import StoreSettings, opening

SEED = int(os.environ.get("RECON_TEST_SEED", random.SystemRandom().randrange(2**32)))
os.environ["RECON_TEST_SEED"] = str(SEED)  # the processes that run the tests get the same

# Timings are no test's subject: a busy machine must not fail the suite.
settings.register_profile("suite", deadline=None, print_blob=True)
settings.register_profile("long", parent=settings.get_profile("suite"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_report_header() -> str:
    return f"random seed: RECON_TEST_SEED={SEED}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator of its own for each test, from the seed that the report's header prints."""
    return random.Random(f"{SEED}/{request.node.nodeid}")


@pytest.fixture(scope="session", autouse=True)
def stores_check_in_the_same_process() -> Iterator[None]:
    """Starting two verifier processes takes longer than most tests: who wants some says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "StoreSettings", partial(StoreSettings, verifiers=0))
        yield
