"""The exercises of chapter 0: counting, naive attention, the roofline."""
