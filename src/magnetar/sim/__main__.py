"""`python -m magnetar.sim`."""

from magnetar.sim.command import main

raise SystemExit(main())
