"""smelt: trained networks in, fast engines out, on any CPU, on NVIDIA GPUs and on NVDLA accelerators."""
