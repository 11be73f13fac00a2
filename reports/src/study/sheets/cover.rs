//! What slots hold, by position.

use super::cells::{plain_percent, points, range, share_cells, text};
use crate::coverage::{self, CoverageRecord};
use crate::study::sheet::Sheet;

/// Coverage records of one drafter.
pub(crate) struct Coverage<'a> {
    pub(crate) checkpoint: &'a str,
    pub(crate) main: Vec<&'a CoverageRecord>,
}

impl<'a> Coverage<'a> {
    /// The plain DFlash drafter's records, or those of the first drafter there is.
    pub(crate) fn of(records: &'a [CoverageRecord]) -> Option<Self> {
        let dflash = records.iter().find(|r| r.checkpoint == "dflash");
        let checkpoint = dflash.or(records.first())?.checkpoint.as_str();
        let main = records
            .iter()
            .filter(|r| r.checkpoint == checkpoint)
            .collect();
        Some(Self { checkpoint, main })
    }

    /// Of each slot.
    pub(crate) fn slots(&self) -> Vec<coverage::SlotCoverage> {
        coverage::slot_coverage(&self.main)
    }

    /// The table that `analyse coverage` prints.
    pub(crate) fn by_slot(&self) -> Sheet {
        let mut sheet = Sheet::new(
            "coverage",
            &format!(
                "What each slot of {} holds, given the true text before the block",
                self.checkpoint
            ),
            &[
                "position",
                "anchors",
                "first choice right",
                "95 % interval",
                "right token in the top 16",
                "95 % interval",
                "gap, points",
                "95 % interval",
                "misses with it in the top 16",
                "95 % interval",
                "gap published (Qwen3-8B)",
            ],
        );
        let slots = self.slots();
        for (i, slot) in slots.iter().enumerate() {
            let mut row = vec![(i + 1).to_string(), slot.n_anchors.to_string()];
            row.extend(share_cells(Some(slot.top1)));
            row.extend(share_cells(Some(slot.covered)));
            row.extend(share_cells(Some(slot.gap)));
            row.extend(share_cells(slot.rescued));
            row.push(match i {
                0 => "12 to 14".into(),
                _ if i + 1 == slots.len() => "38 to 45 (a)".into(),
                _ => "-".into(),
            });
            sheet.rows.push(row);
        }
        let all = coverage::rescued_overall(&self.main);
        sheet.notes = vec![format!(
            "Of all wrong first choices, {} have the right token in the top 16 (95 % interval {}); published: 59 % (Qwen3-8B).",
            text(all.map(|s| s.value), plain_percent),
            range(all, plain_percent),
        )];
        if let Some(widening) = coverage::gap_between(&self.main, 0, slots.len().saturating_sub(1))
        {
            sheet.notes.push(format!(
                "From the first position to the last the gap widens by {} points (95 % interval {}).",
                points(widening.value),
                range(Some(widening), points),
            ));
        }
        sheet.notes.push("Teacher-forced: a block is drafted at every position of the target's own greedy answers. Intervals resample whole prompts. (a) The published last position is the fifteenth.".into());
        sheet
    }
}
