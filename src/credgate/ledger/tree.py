"""The Merkle tree of RFC 6962 section 2.1 over the ledger's lines, each leaf a whole line with its newline. Pure.

The writer keeps the roots of the complete subtrees alone (a "compact range"): one for each bit that is set in the size.
"""

from collections.abc import Sequence
from hashlib import sha256

EMPTY_ROOT = sha256(b"").digest()


def leaf_hash(line: bytes) -> bytes:
    """Hash of a leaf: the 0 in front keeps a leaf from being taken for a node."""
    return sha256(b"\0" + line).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node."""
    return sha256(b"\1" + left + right).digest()


class Tree:
    """A tree that only grows; its state is O(log size)."""

    __slots__ = ("nodes", "size")

    def __init__(self, size: int = 0, nodes: Sequence[bytes] = ()) -> None:
        """`nodes`: the complete subtrees' roots from the left. Raises ValueError when they aren't those of `size`."""
        if size < 0 or len(nodes) != size.bit_count() or any(len(node) != 32 for node in nodes):
            raise ValueError(f"{len(nodes)} subtrees, expected {max(size, 0).bit_count()} for {size} leaves")
        self.size = size
        self.nodes = list(nodes)

    def push(self, leaf: bytes) -> None:
        """Add the next leaf, given its leaf_hash."""
        size = self.size
        while size & 1:
            leaf = node_hash(self.nodes.pop(), leaf)
            size >>= 1
        self.nodes.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """The root over all leaves so far."""
        return fold(self.nodes)


def fold(nodes: Sequence[bytes]) -> bytes:
    """The root over complete subtrees of falling size."""
    if not nodes:
        return EMPTY_ROOT
    root = nodes[-1]
    for node in reversed(nodes[:-1]):
        root = node_hash(node, root)
    return root


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes that are all at hand."""
    tree = Tree()
    for leaf in leaves:
        tree.push(leaf)
    return tree.root()


def consistency_proof(leaves: Sequence[bytes], old: int) -> list[bytes]:
    """PROOF(old, leaves) of RFC 6962 section 2.1.2. Raises ValueError unless 0 < old <= len(leaves)."""
    if not 0 < old <= len(leaves):
        raise ValueError(f"old size is {old}, expected 1 to {len(leaves)}")
    proof: list[bytes] = []
    low, high, known = 0, len(leaves), True
    while old - low != high - low:
        split = low + _split(high - low)
        if old <= split:
            proof.append(root_of(leaves[split:high]))
            high = split
        else:
            proof.append(root_of(leaves[low:split]))
            low, known = split, False
    if not known:
        proof.append(root_of(leaves[low:high]))
    return proof[::-1]


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def consistent(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that the tree of `old` leaves is the beginning of the other (RFC 9162 section 2.1.4.2)."""
    if not 0 < old <= new:
        return False
    if old == new:
        return not proof and old_root == new_root
    path = [old_root, *proof] if old.bit_count() == 1 else list(proof)
    if not path:
        return False
    first, last = old - 1, new - 1
    while first & 1:
        first, last = first >> 1, last >> 1
    left = right = path[0]
    for node in path[1:]:
        if last == 0:
            return False
        if first & 1 or first == last:
            left, right = node_hash(node, left), node_hash(node, right)
            while first and not first & 1:
                first, last = first >> 1, last >> 1
        else:
            right = node_hash(right, node)
        first, last = first >> 1, last >> 1
    return last == 0 and left == old_root and right == new_root
