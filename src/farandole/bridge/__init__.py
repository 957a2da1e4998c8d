"""What all frameworks share: collectives, objects and the policy of gradients. Imports no framework."""
