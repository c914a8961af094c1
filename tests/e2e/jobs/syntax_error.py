"""A script that Python cannot even compile: the fault of its author, to be named at once and not tried again."""
def main(:
    pass
