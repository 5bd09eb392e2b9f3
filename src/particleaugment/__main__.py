"""``python -m particleaugment``."""

from particleaugment.cli import main

if __name__ == "__main__":
    main()
