"""A plan's fetches, put together by the rank that is asked: one link to each."""

from ftcomm.protocol.messages import Plan, Run
from ftcomm.protocol.position import PRELUDE
from ftcomm.recovery.events import StartFetch


def flaw_in(plan: Plan) -> str:
    """Why nobody can carry `plan` out, empty for all that a tracker of ours makes."""
    if not 0 <= plan.rank < len(plan.grouping):
        return f"the plan of epoch {plan.epoch} is for rank {plan.rank}, which has no place in it"
    if plan.load > PRELUDE and not plan.load_from:
        return f"the plan of epoch {plan.epoch} loads version {plan.load} from nobody"
    return ""


def fetch_orders(plan: Plan) -> list[StartFetch]:
    """What this member must ask of whom, by rank; the holders of a checkpoint are dealt out."""
    runs: dict[int, list[Run]] = {}
    owners: dict[int, list[int]] = {}
    loader = -1
    for fetch in plan.fetches:
        runs.setdefault(fetch.source, []).append(fetch.run)
    for local in plan.locals or ():
        owners.setdefault(local.source, []).append(local.rank)
    if plan.load > PRELUDE:
        loader = plan.load_from[plan.rank % len(plan.load_from)]
    sources = {*runs, *owners, *([loader] if loader >= 0 else [])}
    return [
        StartFetch(
            epoch=plan.epoch,
            source=source,
            load=plan.load if source == loader else PRELUDE,
            runs=tuple(runs.get(source, ())),
            local_version=plan.frontier.version if source in owners else PRELUDE,
            locals=tuple(owners.get(source, ())),
        )
        for source in sorted(sources)
    ]
