"""`python -m tests.scenarios`: compare; `--rewrite`: write what comes below each rule; FILE ...: only these."""

import argparse
import sys
from pathlib import Path

from tests.scenarios.player import Player
from tests.scenarios.script import files, parse, render


def played(text: str) -> str:
    """A scenario with what its commands bring about."""
    story, blocks = parse(text)
    player = Player()
    for block in blocks:
        block.expected = player.play(block)
    return render(story, blocks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write what comes of the commands")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args()
    differ = 0
    for path in options.files or files():
        text = path.read_text()
        now = played(text)
        if now != text:
            differ += 1
            print(f"{path.name}: {'rewritten' if options.rewrite else 'differs'}")
            if options.rewrite:
                path.write_text(now)
    return 1 if differ and not options.rewrite else 0


if __name__ == "__main__":
    sys.exit(main())
