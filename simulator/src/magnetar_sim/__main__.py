"""`python -m magnetar_sim`."""

from magnetar_sim.command import main

raise SystemExit(main())
