"""Learns patches of a running flow (burgers.cc) by an autoencoder, and publishes it for the flow to ask. Begin both, in any order:

    burgers 600 & python3 autoencoder.py
"""
import json

import torch

import lockstep.stage

PATCH, CODE = 8, 6
PUBLISH_EVERY = 20  # steps of the flow


def patches_of(field):
    """[1, 2, 64, 64] to [128, 64], in the order of burgers.cc."""
    return field.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).reshape(-1, PATCH * PATCH)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(PATCH * PATCH, 32), torch.nn.Tanh(), torch.nn.Linear(32, CODE), torch.nn.Tanh(),
                              torch.nn.Linear(CODE, 32), torch.nn.Tanh(), torch.nn.Linear(32, PATCH * PATCH))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    steps, losses = 0, []
    with lockstep.stage.Stream("burgers", timeout_s=60, dtype="float32", shape=(1, 2, 64, 64)) as stream:
        for step in stream:
            patches = patches_of(step.tensor())
            loss = torch.nn.functional.mse_loss(net(patches), patches)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1
            if steps % PUBLISH_EVERY == 0:
                lockstep.stage.publish_model("burgers", net)
        counters = stream.counters()
    print(json.dumps({"steps": steps, "loss_first": losses[0], "loss_last": losses[-1], **counters}))


if __name__ == "__main__":
    main()
