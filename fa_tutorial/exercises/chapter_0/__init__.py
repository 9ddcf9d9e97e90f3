"""The exercises of chapter 0: count FLOPs and bytes, predict where memory ends, and draw the roofline."""
