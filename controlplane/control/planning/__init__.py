"""What the planner does: gathers a fleet, keeps proposals and holds, carries out what was approved, measures what came."""
