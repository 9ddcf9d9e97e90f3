"""The exercises of chapter 14: rounding to e4m3, scales by blocks, what an outlier costs, two kinds of outliers, p in e4m3, a block that joins l and acc, the order of keys, v's quantiser."""
