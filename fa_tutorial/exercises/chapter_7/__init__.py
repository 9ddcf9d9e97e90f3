"""The exercises of chapter 7: delta, dk and dv, dq, and the node of autograd that joins them to the forward."""
