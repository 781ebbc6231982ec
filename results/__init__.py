"""Our own results: tuned comparisons and ablations on Fashion-MNIST and CIFAR-10, and the page that shows them."""
