"""One ragged, causal, grouped call in fp16, small enough for compute-sanitizer (a GPU's, it comes with the CUDA toolkit).

    compute-sanitizer --tool memcheck python tests/sanitize_forward.py
    compute-sanitizer --tool racecheck python tests/sanitize_forward.py
"""  # fmt: skip

import torch
from attention_cases import Case, assert_attention

from fa_tutorial import flash_attention

if __name__ == "__main__":
    case = Case(113, 203, D=59, is_causal=True, H_q=6, H_k=2)
    # Tensors of their own, and not inside NaN: there a stray access lands outside an allocation.
    q, k, v = case.data()
    o, lse = flash_attention(q, k, v, is_causal=True, return_lse=True)
    if o.is_cuda:
        torch.cuda.synchronize()
    assert_attention(o, lse, q, k, v, is_causal=True)
    print(f"right: {case}")
