"""Events, the public record of what each mechanism costs, and their privacy losses."""
