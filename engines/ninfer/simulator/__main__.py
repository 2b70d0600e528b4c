"""`python -m engines.ninfer.simulator`"""

from __future__ import annotations

import sys

from engines.ninfer.simulator import main

sys.exit(main())
