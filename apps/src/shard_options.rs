//! Options of programs that run with several shards.

use clap::Args;

use crate::run_loop::shard_cores;

/// Most shards of a context.
const SHARDS_MAX: usize = 64;

/// Number of shards.
#[derive(Clone, Copy, Debug, Args)]
pub struct ShardArgs {
    /// Number of shards. A shard is a queue of the device with its own connections, and a thread
    /// pinned to its own core (--cores). Give one for each core that is to work. A device may have
    /// fewer queues (tap: 4, virtio-user: 8). Over memif and vhost, give both ends the same number.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = shards)]
    pub shards: usize,
}

impl ShardArgs {
    /// Returns the core of each shard: `cores` of the option, or the first ones that may be
    /// used.
    ///
    /// # Errors
    /// If there are not as many cores as shards.
    pub fn cores(self, cores: &[usize]) -> anyhow::Result<Vec<usize>> {
        shard_cores(self.shards, cores)
    }
}

fn shards(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(shards) if (1..=SHARDS_MAX).contains(&shards) => Ok(shards),
        _ => Err(format!("give 1 to {SHARDS_MAX} shards")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_shards_is_checked() {
        assert_eq!((shards("1"), shards("64")), (Ok(1), Ok(64)));
        for wrong in ["0", "65", "-1", "x", ""] {
            assert_eq!(shards(wrong).unwrap_err(), "give 1 to 64 shards", "{wrong}");
        }
    }
}
