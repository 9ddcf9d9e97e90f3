"""The exercises of chapter 13: whose keys are here, merging a part, the ring, fair chunks, a pair's tile, the least shard, the way home, the clock."""
