from calibrant.report import Report, Results
def tell(results: Results) -> Report:
    return Report("x", "y")
