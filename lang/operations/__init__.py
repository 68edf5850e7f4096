"""Operations of a run: how they are recorded, sent and answered."""
