"""python -m fieldwise"""

from .cli import main

main()
