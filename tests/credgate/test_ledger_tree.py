"""Roots and proofs are those of RFC 6962: the reference implementation's vectors, and the RFC's own recursion."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from credgate.ledger.tree import EMPTY_ROOT, Tree, consistency_proof, consistent, leaf_hash, root_of

# Leaves and roots of the reference implementation of Certificate Transparency (merkle_tree_test).
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
PROOF_1_8 = [
    "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
]


def naive(leaves: list[bytes]) -> bytes:
    """MTH(D[n]) of section 2.1, over whole leaves."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\1" + naive(leaves[:k]) + naive(leaves[k:])).digest()


def naive_proof(m: int, leaves: list[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF(m, D[n], b) of section 2.1.2."""
    if m == len(leaves):
        return [] if whole else [naive(leaves)]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if m <= k:
        return [*naive_proof(m, leaves[:k], whole), naive(leaves[k:])]
    return [*naive_proof(m - k, leaves[k:], False), naive(leaves[:k])]


def test_roots_of_the_reference_implementation():
    tree = Tree()
    assert tree.root() == EMPTY_ROOT == sha256(b"").digest()
    for leaf, root in zip(LEAVES, ROOTS, strict=True):
        tree.push(leaf_hash(bytes.fromhex(leaf)))
        assert tree.root().hex() == root
    proof = consistency_proof([leaf_hash(bytes.fromhex(leaf)) for leaf in LEAVES], 1)
    assert [node.hex() for node in proof] == PROOF_1_8


def test_roots_and_proofs_are_those_of_the_recursion():
    data = [str(n).encode() for n in range(40)]
    hashes = [leaf_hash(item) for item in data]
    tree = Tree()
    for n in range(1, 41):
        tree.push(hashes[n - 1])
        assert tree.root() == naive(data[:n]) == root_of(hashes[:n])
        assert len(tree.nodes) == n.bit_count()
        for m in range(1, n + 1):
            proof = consistency_proof(hashes[:n], m)
            assert proof == naive_proof(m, data[:n])
            assert consistent(m, naive(data[:m]), n, naive(data[:n]), proof)


@given(st.integers(1, 33), st.integers(0, 33), st.data())
def test_a_changed_proof_shows_nothing(old: int, more: int, data: st.DataObject):
    hashes = [leaf_hash(bytes([n])) for n in range(old + more)]
    proof = consistency_proof(hashes, old)
    roots = root_of(hashes[:old]), root_of(hashes)
    wrong = bytes(32)
    assert not consistent(old, wrong, old + more, roots[1], proof)
    assert not consistent(old, roots[0], old + more, wrong, proof)
    assert not consistent(old, roots[0], old + more, roots[1], [*proof, wrong])
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        assert not consistent(old, roots[0], old + more, roots[1], [*proof[:at], wrong, *proof[at + 1 :]])
        assert not consistent(old, roots[0], old + more, roots[1], proof[:-1])


@given(st.integers(-1, 9), st.binary(max_size=64), st.integers(-1, 9), st.lists(st.binary(max_size=33), max_size=4))
def test_nothing_but_false_comes_of_garbage(old: int, root: bytes, new: int, proof: list[bytes]):
    assert consistent(old, root, new, b"other", proof) is False


@pytest.mark.parametrize(("size", "nodes"), [(-1, 0), (1, 0), (3, 1), (4, 2)])
def test_a_frontier_of_another_size_is_refused(size: int, nodes: int):
    with pytest.raises(ValueError, match="subtrees"):
        Tree(size, [bytes(32)] * nodes)


@pytest.mark.parametrize("old", [0, 3])
def test_a_proof_from_nowhere_is_refused(old: int):
    with pytest.raises(ValueError, match="expected 1 to 2"):
        consistency_proof([bytes(32)] * 2, old)
