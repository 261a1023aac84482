"""Hierarchical collectives: cheap links inside a host, and as few bytes as can be between hosts.

A *group* is the ranks of one host, by the job's grouping; groups are in the order of their lowest
ranks.  Let there be H of them, the largest of S ranks.

Allreduce of much: the array is cut into S shares.  A group of L ranks cuts it into L blocks of
whole shares (share i is in block i*L//S), and reduces and scatters them along a ring of its ranks;
then each share goes around a ring of one rank of each group, and a ring inside the group gathers
the blocks.  So the operand of a group in a block is the left fold of its ranks b, b+1, ... (modulo
L), b being the block's number, and part k of a share's H parts is the left fold of the operands of
groups k, k+1, ... (modulo H).  A host sends 2(H-1)/H of the bytes, by all its ranks together.

Allreduce of little: a binomial tree inside each group, neighbours first and lower ranks' operand
first; recursive doubling of the groups' lowest ranks; a binomial tree back.

Broadcast: a tree over one rank of each group, the root for its own, then a tree inside each; of
much a chain, group by group.

Allgather: column i is what the i-th rank of each group brings; it goes around a ring of one rank of
each group (rank i modulo L), then the columns go around a ring inside each group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.non_power_of_two import lower_first
from ftcomm.collectives.schedules.pipelined_chain import chain_broadcast
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce, ring_gather, ring_reduce
from ftcomm.collectives.schedules.schedule import NOBODY, Copy, Schedule, Step, block_bounds
from ftcomm.protocol.host_groups import Grouping, members_of
from ftcomm.protocol.signature import Algorithm, Kind

# Bytes from which shares beat the tree; each row holds up to its number of hosts. The tree has
# log2(H) steps of all the bytes between hosts, the shares 2(H-1) steps of an H-th, and less to move
# inside a host.
SHARES_FROM_BYTES: tuple[tuple[int, int], ...] = (
    (2, 128 * 1024),
    (4, 192 * 1024),
    (16, 640 * 1024),
    (64, 2 * 1024 * 1024),
    (1024, 16 * 1024 * 1024),
)


class HostLayout:
    """Place of one rank in its grouping."""

    def __init__(self, grouping: Grouping, rank: int) -> None:
        self.groups = members_of(grouping)  # the ranks of each group, ascending
        self.host = grouping[rank]  # number of the rank's own group
        self.ranks = self.groups[self.host]  # its ranks
        self.index = self.ranks.index(rank)  # the rank's place in it
        # Ranks of the largest group, and so the number of shares and columns.
        self.largest = max(len(group) for group in self.groups)


def hierarchical_allreduce(grouping: Grouping, rank: int, count: int, itemsize: int) -> Schedule:
    """The schedule of `rank`, by shares or by a tree, as the table says."""
    build = shares_allreduce if count * itemsize >= _shares_from(grouping) else tree_allreduce
    return build(grouping, rank, count)


def _shares_from(grouping: Grouping) -> int:
    hosts = len(set(grouping))
    return next(from_bytes for up_to, from_bytes in SHARES_FROM_BYTES if hosts <= up_to)


def shares_allreduce(grouping: Grouping, rank: int, count: int) -> Schedule:
    """The schedule of `rank` for many elements: every rank drives a share of the network."""
    at = HostLayout(grouping, rank)
    size, hosts = len(at.ranks), len(at.groups)
    shares = block_bounds(count, at.largest)
    blocks = tuple(shares[first_share(block, size, at.largest)] for block in range(size + 1))
    steps = _embedded(ring_reduce(size, at.index, blocks), at.ranks, 0, fresh=True)
    tag = at.largest - 1
    own = (at.index + 1) % size  # the block that the ring has left here
    for share in range(at.largest):
        if share * size // at.largest == own:
            lo, hi = shares[share], shares[share + 1]
            around = ring_allreduce(hosts, at.host, hi - lo).steps
            drivers = [_driver(group, share, at.largest) for group in at.groups]
            steps += _embedded(around, drivers, tag, offset=lo, fresh=size == 1)
        tag += 2 * (hosts - 1)
    steps += _embedded(ring_gather(size, at.index, blocks), at.ranks, tag, fresh=False)
    return _allreduce(grouping, rank, count, steps)


def first_share(block: int, size: int, shares: int) -> int:
    """The lowest share in a block of a group of `size`: the lowest i with i*size//shares there."""
    return -(-block * shares // size)


def _driver(group: Sequence[int], share: int, shares: int) -> int:
    """The rank of a group with which its ring has left the block that holds the share."""
    return group[share * len(group) // shares - 1]


def tree_allreduce(grouping: Grouping, rank: int, count: int) -> Schedule:
    """The schedule of `rank` for few elements: one rank of each group speaks for it."""
    at = HostLayout(grouping, rank)
    steps = _towards_first(at, count)
    tag = _rounds(at.largest)
    if at.index == 0:
        leaders = [group[0] for group in at.groups]
        across = doubling_allreduce(len(leaders), at.host, count).steps
        steps += _embedded(across, leaders, tag, fresh=len(at.ranks) == 1)
    tag += len(at.groups).bit_length() + 1
    back = binomial_broadcast(len(at.ranks), at.index, count, 0).steps
    steps += _embedded(back, at.ranks, tag, fresh=False)
    return _allreduce(grouping, rank, count, steps)


def _towards_first(at: HostLayout, count: int) -> list[Step]:
    """A tree over the group's ranks, neighbours first, to the lowest of them."""
    steps: list[Step] = []
    for bit in range(_rounds(len(at.ranks))):
        fresh, distance = not steps, 1 << bit
        if at.index & distance:
            peer = at.ranks[at.index - distance]
            steps.append(Step(tag=bit, send_to=peer, send_hi=count, send_from_sendbuf=fresh))
            break
        if at.index + distance < len(at.ranks):
            peer = at.ranks[at.index + distance]
            order = lower_first(count, incoming_first=False)
            steps.append(
                Step(tag=bit, recv_from=peer, recv_hi=count, reduce=order, own_in_sendbuf=fresh)
            )
    return steps


def _allreduce(grouping: Grouping, rank: int, count: int, steps: Sequence[Step]) -> Schedule:
    size = len(grouping)
    return Schedule(Kind.ALLREDUCE, Algorithm.HIERARCHICAL, size, rank, count, count, tuple(steps))


def hierarchical_broadcast(grouping: Grouping, rank: int, count: int, root: int) -> Schedule:
    """The schedule of `rank`; the root's sendbuf goes to everyone's recvbuf."""
    at = HostLayout(grouping, rank)
    leaders = [root if root in group else group[0] for group in at.groups]
    leader, is_root, steps = leaders[at.host], rank == root, list[Step]()
    if rank == leader:
        across = binomial_broadcast(len(leaders), at.host, count, grouping[root]).steps
        steps += _embedded(across, leaders, 0, fresh=is_root)
    inside = binomial_broadcast(len(at.ranks), at.index, count, at.ranks.index(leader)).steps
    steps += _embedded(inside, at.ranks, _rounds(len(leaders)), fresh=is_root)
    return Schedule(
        Kind.BROADCAST,
        Algorithm.HIERARCHICAL,
        len(grouping),
        rank,
        count if is_root else 0,
        count,
        tuple(steps),
        (Copy(0, 0, count),) if is_root else (),
    )


def chain_by_hosts(grouping: Grouping, rank: int, count: int, root: int, itemsize: int) -> Schedule:
    """The chain with the root and its host first, then host by host: each is entered once."""
    hosts, first = len(set(grouping)), grouping[root]
    order = sorted(
        range(len(grouping)), key=lambda one: ((grouping[one] - first) % hosts, one != root, one)
    )
    flat = chain_broadcast(len(order), order.index(rank), count, 0, itemsize)
    return replace(flat, rank=rank, steps=tuple(_embedded(flat.steps, order, 0, fresh=True)))


def _rounds(size: int) -> int:
    """Rounds of a binomial tree of `size` ranks."""
    return (size - 1).bit_length()


def _embedded(
    steps: Iterable[Step], ranks: Sequence[int], tag: int, *, offset: int = 0, fresh: bool
) -> list[Step]:
    """The same steps among `ranks`, numbered from `tag` on, on elements from `offset` on.

    Args:
        steps: of a rank of a group of ``len(ranks)``.
        ranks: who has which place in that group.
        tag: added to the number of every step.
        offset: added to every element's index.
        fresh: nothing has been reduced or received here yet: what the steps read from sendbuf
            is there.  Otherwise it is in recvbuf, and so is what they write.
    """
    return [_embedded_step(step, ranks, tag, offset, fresh=fresh) for step in steps]


def _embedded_step(step: Step, ranks: Sequence[int], tag: int, offset: int, *, fresh: bool) -> Step:
    meets = step.send_lo < step.recv_hi and step.recv_lo < step.send_hi
    return replace(
        step,
        tag=tag + step.tag,
        send_to=_rank(ranks, step.send_to),
        send_lo=offset + step.send_lo,
        send_hi=offset + step.send_hi,
        send_from_sendbuf=step.send_from_sendbuf and fresh,
        recv_from=_rank(ranks, step.recv_from),
        recv_lo=offset + step.recv_lo,
        recv_hi=offset + step.recv_hi,
        own_in_sendbuf=step.own_in_sendbuf and fresh,
        deferred=step.deferred or (meets and step.send_from_sendbuf and not fresh),
    )


def _rank(ranks: Sequence[int], place: int) -> int:
    return NOBODY if place == NOBODY else ranks[place]
