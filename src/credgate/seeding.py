"""The first files of an agent's home in the jail, from its profile: never the user's own files, never a real key."""

from collections.abc import Mapping, Sequence

from credgate.errors import CredgateError
from jail.plan import under
from rules.agents import Agent, fill, needs_decoy

REFUSED = 125


def seeded(
    agent: Agent | None, home: str, cwd: str, decoys: Mapping[str, str], shown: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """(path inside, text) of each seed. `decoys`: by variable; `shown`: trees of the host that the jail sees.

    Raises CredgateError where a tree of the host already has that place: nothing is written there, and an agent that
    starts with another configuration than the profile's would ask, or find its own sandbox on.
    """
    if agent is None:
        return ()
    decoy = next((decoys[name] for name in sorted(agent.key_names()) if name in decoys), "")
    if not decoy and needs_decoy(agent):  # a child's role, of whose bindings its parent has not this one
        detail = f"agent {agent.name}: this role has no decoy for {' or '.join(sorted(agent.key_names()))}"
        raise CredgateError("seed_without_key", detail, "give both roles the binding, or leave the agent out", REFUSED)
    refresh = decoys.get(agent.login.env, "") if agent.login is not None else ""
    made = tuple((home + seed.path[1:], fill(seed.text, decoy=decoy, cwd=cwd, refresh=refresh)) for seed in agent.seeds)
    for path, _ in made:
        tree = next((tree for tree in shown if under(path, tree) or under(tree, path)), "")
        if tree:
            detail = f"agent {agent.name}: its first files hold {path}, and the host's {tree} is bound there"
            hint = "take the tree out of the role (read, tools, --workdir), or the agent"
            raise CredgateError("seed_covered", detail, hint, REFUSED)
    return made
