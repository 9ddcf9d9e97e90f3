from edits import edit

from fa_tutorial.matmul import tl, triton


@triton.jit
def merge_without_a_guard(o_parts_ptr, lse_parts_ptr, o_ptr, lse_ptr, rows, splits, D, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):
    row, offs_d = tl.program_id(0), tl.arange(0, BLOCK_D)
    m, l = tl.load(lse_parts_ptr + row), 1.0
    acc = tl.load(o_parts_ptr + row * D + offs_d, mask=offs_d < D, other=0.0)
    for s in range(1, splits):
        lse = tl.load(lse_parts_ptr + s * rows + row)
        m_new = tl.maximum(m, lse)
        alpha, p = tl.exp(m - m_new), tl.exp(lse - m_new)
        l = alpha * l + p
        acc = alpha * acc + p * tl.load(o_parts_ptr + (s * rows + row) * D + offs_d, mask=offs_d < D, other=0.0)
        m = m_new
    tl.store(o_ptr + row * D + offs_d, acc / l, mask=offs_d < D)
    tl.store(lse_ptr + row, m + tl.log(l))


WRONG_ANSWERS = (
    edit("11.1", "MiB", ("copy_gb_s / 1e3", "copy_gb_s / 1e3 / 1.048576"), told="a GB is 10⁹"),
    edit("11.1", "whole tiles alone", ("math.ceil(S / 64)", "(S // 64)"), told="610 keys are 10 tiles, the last of them with 34 keys"),
    edit("11.2", "a finite number for missing parts", ('other=-float("inf")', "other=-1e6"), told="missing parts have −∞"),
    edit("11.2", "v without other", ("mask=mask, other=0.0", "mask=mask"), told="0 · NaN is NaN", gpu=None),
    ("11.2", merge_without_a_guard, "−∞ − (−∞) would be NaN"),
    edit("11.3", "every row sees all", ("S - S_q + offs_m % S_q", "S - 1 + 0 * offs_m"), told="row r is token r % S_q"),
    edit("11.3", "program ids exchanged", ("tl.program_id(0), tl.program_id(1)", "tl.program_id(1), tl.program_id(0)"),
         told="i is tl.program_id(0)", gpu=None),
    edit("11.3", "walks on after the last key", ("tl.minimum((split + 1) * part, S)", "(split + 1) * part"),
         told="no tile begins at S or after it, so end is at most S", gpu=None),
    edit("11.3", "ends with the oldest token", ("(split + 1) * part, S)", "(split + 1) * part, S - S_q + 1)"), told="counts for the two newest tokens"),
    edit("11.3", "stores every row", (", mask=offs_m < rows", ""), told="q, o and lse end at row `rows`"),
    *(edit(number, "all heads in batch entry 0", ("b, h_k = batch_head // H_k, batch_head % H_k", "b, h_k = batch_head * 0, batch_head"), told=told)
      for number, told in (("11.3", "program i has batch entry i // H_k"), ("11.5", "sequence b = i // H_k has its own length"))),
    *(edit("11.3", f"{what} of batch entry 0", change, told="program i has batch entry i // H_k") for what, change in (
        ("q", ("load_tile(q, b, h_k", "load_tile(q, 0, batch_head")), ("k and v", ("acc, b, h_k", "acc, 0, batch_head")))),
    *(edit("11.5", f"length {text}", ("seqlens_ptr + b", text), told="sequence b = i // H_k has its own length")
      for text in ("seqlens_ptr", "seqlens_ptr + h_k", "seqlens_ptr + batch_head")),
    *(edit("11.5", f"row {text}", ("b * pages", text), told="sequence b = i // H_k has its own length")
      for text in ("b * tl.num_programs(0)", "batch_head * pages")),
    edit("11.5", "q of batch entry 0", ("load_tile(q, b, h_k", "load_tile(q, 0, batch_head"), told="q, k and v are views"),
    edit("11.4", "a price for more programs", ("math.ceil(n * splits / sms)", "min(math.ceil(n * splits / sms), len(prices))"), (" if n * splits <= len(prices) * sms", ""),
         told="`prices` has no price"),
    edit("11.4", "132 SMs", ("n * splits / sms", "n * splits / 132"), told="5 splits are 3 programs of 103 tiles"),
    edit("11.1", "132 SMs", ("splits / sms", "splits / 132"), told="10 programs on 5 SMs are 2 on each"),
    *(edit(number, "m begins at 0, no keys by l", ("tl.full((BLOCK_M,), -float(\"inf\"), dtype=tl.float32)", "tl.zeros((BLOCK_M,), dtype=tl.float32)"),
           ("m + tl.log(l_or_one)", 'tl.where(l > 0, m + tl.log(l_or_one), -float("inf"))'), told="each score is −128") for number in ("11.3", "11.5")),
    edit("11.1", "no more programs than tiles", ("B * H_k * splits / sms", "B * H_k * min(splits, math.ceil(S / 64)) / sms"), told="programs whose part has no tile are left out"),
    edit("11.4", "10 %", ("1.05 * least", "1.1 * least"), told="over 5 % more"),
    edit("11.4", "over 4 tiles", ("tiles // 4 + 1", "(tiles - 1) // 4 + 1"), told="exactly 4 tiles each"),
    edit("11.4", "a split more", ("tiles // 4 + 1", "tiles // 4 + 2"), told="at most 17 splits have 4 tiles each"),
    edit("11.4", "5 % of itself", ("us(splits) <= 1.05 * least", "0.95 * us(splits) <= least"), told="15 splits are 20"),
    edit("11.6", "the newest tokens forgotten", ("S - S_q - left", "S - left"), told="the first is the last of its tile"),
    edit("11.5", "walks on after the last key", ("tl.minimum((split + 1) * part, S)", "(split + 1) * part"),
         told="no tile begins at S or after it", gpu=None),
    edit("11.5", "the position for the row", ("h_k, start_n - first, ", "h_k, start_n, "), told="key n is row n % 16 of page table[b, n // 16]", gpu=None),
    edit("11.6", "tiles of 16", ("    first =", "    BLOCK_N = 16\n    first ="), told="tiles of BLOCK_N = 64 keys: three from key 128 on"),
    edit("11.5", "no mask", ("scale, True,", "scale, False,"), told="each row sees the keys up to its own token's position"),
)  # fmt: skip
