"""``python -m particleaugment``."""

from particleaugment.cli.main import main

if __name__ == "__main__":
    main()
