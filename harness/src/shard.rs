//! One part of a plan: its number, where the number comes from, and which groups it has.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};

/// Most parts of a plan.
const MAX_PARTS: usize = 100_000;

/// The `number`-th of `of` parts, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    number: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let Some((number, of)) = parts else {
            bail!("--shard {text:?}: write I/N, such as 1/3, 2/3 and 3/3");
        };
        Self::new(number, of).with_context(|| format!("--shard {text:?}"))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl Shard {
    fn new(number: usize, of: usize) -> Result<Self> {
        ensure!(
            (1..=MAX_PARTS).contains(&of) && (1..=of).contains(&number),
            "a part is numbered from 1 to the number of parts, of which there are at most {MAX_PARTS}"
        );
        Ok(Self { number, of })
    }

    /// The part that a Slurm array task or the pod of an indexed Kubernetes job should take; `var` looks up a variable
    /// of the environment. Kubernetes does not say how many pods there are: the template sets `JOB_COMPLETIONS`.
    ///
    /// # Errors
    /// If the variables are there and make no sense.
    pub(crate) fn from_environment(var: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| -> Result<Option<usize>> {
            var(name)
                .map(|text| {
                    text.trim()
                        .parse()
                        .with_context(|| format!("{name}={text:?}"))
                })
                .transpose()
        };
        if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
            let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            let Some(of) = number("SLURM_ARRAY_TASK_COUNT")? else {
                bail!(
                    "SLURM_ARRAY_TASK_ID is set and SLURM_ARRAY_TASK_COUNT is not; give --shard I/N"
                );
            };
            let number = id.checked_sub(first).map_or(0, |past| past / step + 1);
            let what = || format!("SLURM_ARRAY_TASK_ID={id}, _MIN={first}, _COUNT={of}");
            return Self::new(number, of).with_context(what).map(Some);
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            let Some(of) = number("JOB_COMPLETIONS")? else {
                bail!(
                    "JOB_COMPLETION_INDEX is set and JOB_COMPLETIONS is not; set it to the job's completions, or give --shard I/N"
                );
            };
            let what = || format!("JOB_COMPLETION_INDEX={index}, JOB_COMPLETIONS={of}");
            return Self::new(index + 1, of).with_context(what).map(Some);
        }
        Ok(None)
    }

    /// Indices of this part's groups, rising; `costs` has an entry a group. Dearest first, each goes to the part that
    /// has the least so far, so every part of one plan comes to the same division by itself.
    pub(crate) fn pick(self, costs: &[u64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        order.sort_by_key(|idx| (std::cmp::Reverse(costs[*idx]), *idx));
        let mut loads = vec![0u128; self.of];
        let mut mine = Vec::new();
        for idx in order {
            let lightest = (0..self.of).min_by_key(|part| (loads[*part], *part));
            let part = lightest.expect("there is at least one part");
            // A group of no cost still counts, or all of them would go to one part.
            loads[part] += u128::from(costs[idx].max(1));
            if part + 1 == self.number {
                mine.push(idx);
            }
        }
        mine.sort_unstable();
        mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_whole_and_balanced() {
        let costs = [7, 1, 1, 9, 3, 3, 0, 4];
        let parts: Vec<Vec<usize>> = (1..=3)
            .map(|i| format!("{i}/3").parse::<Shard>().unwrap().pick(&costs))
            .collect();
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, (0..costs.len()).collect::<Vec<_>>());
        let load = |part: &Vec<usize>| part.iter().map(|i| costs[*i]).sum::<u64>();
        let loads: Vec<u64> = parts.iter().map(load).collect();
        assert!(loads.iter().all(|l| (9..=10).contains(l)), "{loads:?}");
        assert_eq!("2/2".parse::<Shard>().unwrap().pick(&[5]), [0; 0]);
    }

    #[test]
    fn a_part_that_does_not_exist_is_refused() {
        for text in ["0/3", "4/3", "1/0", "1", "a/b", "1/3/5"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("--shard {text:?}")), "{error}");
        }
    }

    #[test]
    fn slurm_and_kubernetes_number_their_tasks() {
        let from = |vars: &[(&str, &str)]| {
            let var = |name: &str| {
                let found = vars.iter().find(|v| v.0 == name);
                found.map(|v| v.1.to_owned())
            };
            Shard::from_environment(var).map(|s| s.map(|s| s.to_string()))
        };
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
        ];
        assert_eq!(from(&slurm).unwrap().as_deref(), Some("3/4"));
        let pod = [("JOB_COMPLETION_INDEX", "0"), ("JOB_COMPLETIONS", "3")];
        assert_eq!(from(&pod).unwrap().as_deref(), Some("1/3"));
        assert_eq!(from(&[]).unwrap(), None);
        let error = from(&pod[..1]).unwrap_err().to_string();
        assert!(error.contains("JOB_COMPLETIONS is not"), "{error}");
        assert!(from(&slurm[..1]).is_err());
    }
}
