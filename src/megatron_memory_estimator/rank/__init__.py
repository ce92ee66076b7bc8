"""One pipeline rank: its chunks, the schedule, scratch, boundaries, and the peak of them all."""
