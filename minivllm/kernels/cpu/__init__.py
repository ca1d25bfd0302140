"""Operations for a CPU, faster than the reference: what is not here is the reference itself."""
