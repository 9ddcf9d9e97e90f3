"""The exercises of chapter 1: safe softmax, the online normaliser, merging, a telling row, the running weighted sum, joining two parts."""
