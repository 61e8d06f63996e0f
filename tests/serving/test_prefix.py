"""Decode's prefix cache, followed through its engine's events."""

import pytest

pytest.importorskip("ray.serve.llm")

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

from diptych.serving.prefix import CacheFollower


def stored(names: list[bytes], tokens: list[int], parent: bytes | None = None, **more: object) -> BlockStored:
    fields = {"lora_id": None, "medium": "GPU", "lora_name": None, **more}
    return BlockStored(block_hashes=names, parent_block_hash=parent, token_ids=tokens, block_size=2, **fields)


def test_what_the_engine_stored_is_cached_until_it_is_removed() -> None:
    follower = CacheFollower()
    follower.take([stored([b"a", b"b"], [1, 2, 3, 4]), stored([b"c"], [5, 6], parent=b"b")])
    assert follower.cached_tokens([1, 2, 3, 4, 5, 6, 7]) == 6
    assert follower.cached_tokens([1, 2, 9, 4]) == 2
    assert follower.cached_tokens([2, 1]) == 0
    follower.take([BlockRemoved(block_hashes=[b"b"], medium="GPU")])
    assert follower.cached_tokens([1, 2, 3, 4, 5, 6]) == 2
    follower.take([AllBlocksCleared()])
    assert follower.cached_tokens([1, 2]) == 0


def test_what_is_not_known_for_certain_counts_as_uncached() -> None:
    follower = CacheFollower()
    follower.take([stored([b"c"], [5, 6], parent=b"unseen")])
    follower.take([stored([b"d"], [1, 2], extra_keys=[("a salt",)])])
    follower.take([stored([b"e"], [3, 4], lora_name="adapter")])
    assert [follower.cached_tokens(tokens) for tokens in ([5, 6], [1, 2], [3, 4])] == [0, 0, 0]


def test_a_model_with_caches_of_several_kinds_is_not_followed() -> None:
    follower = CacheFollower()
    follower.take([stored([b"a"], [1, 2]), stored([b"b"], [1, 2], group_idx=1)])
    assert follower.cached_tokens([1, 2]) == 0
