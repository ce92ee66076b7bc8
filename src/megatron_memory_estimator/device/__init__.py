"""From torch's allocated peak to reserved and device memory: ranges made of named terms."""
