//! Sampled drafts of a corrector through the decode loop: the target's law must not bend.

use baselines::Arm;
use baselines::dcoco::{
    Candidates, Channels, Corrector, CorrectorSizes, DcocoConfig, DcocoHead, Lattice, Layout,
};
use candle_core::{Device, Tensor};
use decode::toy::ToyTarget;
use decode::{
    Anchor, Committed, DraftLaw, Drafter, LayerId, Parts, Probe, Proposal, Request, Sampling,
    Settings, Silent, Slot, StepCost, TokenIo, VerifyAll, decode,
};
use models::Weights;
use statrs::distribution::{ChiSquared, ContinuousCDF};
use tests::hash_fill;

const VOCAB: usize = 6;
const GAMMA: usize = 3;
const K: usize = 3;
/// Width of the toy's states.
const WIDTH: usize = 2;
const SAMPLED: Sampling = Sampling::at(1000);
const N_GENERATIONS: u64 = 60_000;
/// As in the toy's own law test: seeds are fixed, so a pass stays a pass, and the bent law below lands under 1e-30.
const P_MIN: f64 = 1e-3;

const SIZES: CorrectorSizes = CorrectorSizes {
    hidden: WIDTH,
    candidate: 4,
    pair: 3,
    units: 6,
};

fn weights() -> Weights {
    let tensors = Layout::L1.tensors(&SIZES).into_iter().enumerate();
    let tensors = tensors.map(|(i, (name, shape))| {
        let values = hash_fill(shape.iter().product(), 40 + i as u64, 3.0, 0.0);
        let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).unwrap();
        (name, tensor)
    });
    Weights::from_tensors("toy", tensors)
}

fn head(key: &str) -> DcocoHead {
    let config = DcocoConfig {
        file: "toy".into(),
        candidates: K,
        candidate_width: SIZES.candidate,
        pair_width: SIZES.pair,
        hidden_width: SIZES.units,
        channels: Channels::ALL,
        has_confidence: false,
    };
    let options = Arm::parse(key).unwrap().options;
    DcocoHead::new(&config, (WIDTH, VOCAB), &mut weights(), &options).unwrap()
}

/// `[n, width]` values that are a hash of an anchor each.
fn hashed(anchors: &[u32], width: usize, seed: u64) -> Tensor {
    let values: Vec<f32> = anchors
        .iter()
        .flat_map(|token| hash_fill(GAMMA * width, seed + u64::from(*token), 4.0, 0.0))
        .collect();
    Tensor::from_vec(values, (anchors.len() * GAMMA, width), &Device::Cpu).unwrap()
}

/// A corrector on a trunk that says something fixed about every anchor.
struct Toy<P>(P);

impl<P> Drafter for Toy<P>
where
    P: FnMut((&Tensor, &Tensor), &mut [Anchor<'_>], &dyn TokenIo, Sampling) -> Vec<Proposal>,
{
    fn taps(&self) -> &[LayerId] {
        &[]
    }
    fn max_draft(&self) -> usize {
        GAMMA
    }
    fn start(&mut self, _: Committed<'_>) -> decode::Result<()> {
        Ok(())
    }
    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        _: &mut dyn Probe,
    ) -> decode::Result<Vec<Proposal>> {
        let anchors: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let (hidden, logits) = (hashed(&anchors, WIDTH, 10), hashed(&anchors, VOCAB, 20));
        Ok(self.0((&hidden, &logits), rows, io, sampling))
    }
    fn commit(&mut self, _: Vec<Committed<'_>>) -> decode::Result<()> {
        Ok(())
    }
    fn finish(&mut self, _: Slot) {}
}

/// p-value of the counts of the first four tokens against the target's exact law, and accepted drafts a round.
fn p_value(drafter: &mut dyn Drafter, seed: u64) -> (f64, f64) {
    let request = |id| Request {
        id,
        prompt: vec![1, 2, 3],
        max_new: 4,
    };
    let settings = Settings {
        slots: 8,
        sampling: SAMPLED,
        seed,
        cost: StepCost::flat(),
    };
    let parts = Parts {
        target: &mut ToyTarget::new(VOCAB, 8, 64, &[]),
        drafter,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    let got = decode(parts, (0..N_GENERATIONS).map(request).collect(), &settings).unwrap();
    let mut counts = vec![0f64; VOCAB.pow(4)];
    let (mut accepted, mut rounds) = (0.0, 0.0);
    for generation in &got {
        let tokens = generation.tokens.iter();
        counts[tokens.fold(0, |cell, t| cell * VOCAB + *t as usize)] += 1.0;
        accepted += generation
            .rounds
            .iter()
            .map(|r| f64::from(r.accepted))
            .sum::<f64>();
        rounds += generation.rounds.len() as f64;
    }
    let (mut chi2, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
    for (cell, count) in counts.iter().enumerate() {
        let want = exact(cell) * N_GENERATIONS as f64;
        if want < 10.0 {
            rare = (rare.0 + count, rare.1 + want);
        } else {
            chi2 += (count - want).powi(2) / want;
            cells += 1;
        }
    }
    chi2 += (rare.0 - rare.1).powi(2) / rare.1;
    assert!(
        cells > 300,
        "the test must look at many outcomes, got {cells}"
    );
    let p = ChiSquared::new(f64::from(cells)).unwrap().sf(chi2);
    (p, accepted / rounds)
}

/// Probability of four tokens after the prompt 1, 2, 3.
fn exact(cell: usize) -> f64 {
    let (mut a, mut b, mut p) = (2, 3, 1.0);
    for i in (0..4).rev() {
        let token = (cell / VOCAB.pow(i) % VOCAB) as u32;
        p *= f64::from(ToyTarget::law(VOCAB, a, b, SAMPLED)[token as usize]);
        (a, b) = (b, token);
    }
    p
}

#[test]
fn every_proposal_follows_the_targets_law() {
    let keys = [
        "dcoco",
        "dcoco:proposal=lattice",
        "dcoco:proposal=point",
        "dcoco:select=global_sum",
        "dcoco:select=global_sum:proposal=lattice",
        "dcoco:k=6",
    ];
    for (i, key) in keys.into_iter().enumerate() {
        let mut head = head(key);
        let mut drafter = Toy(
            |states: (&Tensor, &Tensor), rows: &mut [Anchor<'_>], io: &dyn TokenIo, sampling| {
                head.propose(states, GAMMA, rows, io, sampling).unwrap()
            },
        );
        let (p, accepted) = p_value(&mut drafter, 500 + i as u64);
        assert!(p > P_MIN, "{key}: p = {p:e}");
        assert!(
            accepted > 0.1,
            "{key}: {accepted} drafts a round prove little"
        );
    }
}

#[test]
fn the_greedy_chain_reported_as_drawn_is_caught() {
    let sizes = SIZES;
    let mut corrector = Corrector::new(sizes, Channels::ALL, &mut weights(), "toy").unwrap();
    let mut drafter = Toy(
        |(hidden, logits): (&Tensor, &Tensor), rows: &mut [Anchor<'_>], io: &dyn TokenIo, _| {
            let candidates = Candidates::of(logits, K).unwrap();
            let scores = corrector.scores(hidden, &candidates, GAMMA, io).unwrap();
            let square = (GAMMA - 1) * K * K;
            (0..rows.len())
                .map(|row| {
                    let (ids, own) = (row * GAMMA * K, row * square);
                    let first = &candidates.log_probs[ids..ids + K];
                    let lattice = Lattice::new(first, &scores[own..own + square]);
                    let ranks = lattice.walk();
                    let probs = lattice.walk_law(&ranks, 1.0);
                    let ids = &candidates.ids[ids..ids + GAMMA * K];
                    let chosen = ids.chunks_exact(K).zip(&ranks);
                    Proposal {
                        tokens: chosen.map(|(ids, rank)| ids[*rank]).collect(),
                        parents: None,
                        law: DraftLaw::TopK {
                            ids: Tensor::from_slice(ids, (GAMMA, K), &Device::Cpu).unwrap(),
                            probs: Tensor::from_vec(probs, (GAMMA, K), &Device::Cpu).unwrap(),
                        },
                        confidence: None,
                    }
                })
                .collect()
        },
    );
    let (p, _) = p_value(&mut drafter, 600);
    assert!(p < 1e-30, "p = {p:e}");
}
