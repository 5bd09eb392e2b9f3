// One block moves the masks of one image. A pixel is a copy of one pixel of the original or the fill, so its source is
// followed back through all steps, the last first, and read once; the numbers are those of Pillow's nearest neighbour,
// step by step. Types, ops and coefficients are those of coefficients.cu, which is compiled with it.

const int MAX_STEPS = 64;
const int GIVEN_MATRIX = -1;
enum Kind { NOTHING, ALIGNED, FIXED_POINT, TURNED, ERASED };

// The host fills this structure field by field (fused.py): 8-byte fields first, so that both sides agree on the layout.
struct MaskParams {
  const void* masks;     // [B, M, H, W]
  void* out;
  const i64* op;         // [B, S] op indices, or GIVEN_MATRIX
  const double* arg;     // [B, S]
  const double* matrix;  // [B, S, 6], read where op is GIVEN_MATRIX, or null
  const i64* erased;     // [B, S, 4] left, top, right, bottom, read where op is CUTOUT, or null
  u64 fill;              // the bits of one pixel, in the lowest bytes
  int steps, masks_per_image, height, width, bytes, has_tables;
};

struct SharedSteps {
  int kind[MAX_STEPS], number[MAX_STEPS][6], order[MAX_STEPS], used;
  double matrix[MAX_STEPS][6];
};

__device__ int nearest_place(double position, int side) {
  return position >= 0.0 && position < (double)side ? (int)position : -1;
}

// Pillow adds the step pixel by pixel and rounds each time.
__device__ double accumulated(double position, double step, int count) {
  for (int i = 0; i < count; i++) position += step;
  return position;
}

__device__ int prepare(const MaskParams& p, u64 at, double* m, int* number) {
  int op = (int)p.op[at], turn = -1;
  if (op == CUTOUT && p.erased) {
    for (int i = 0; i < 4; i++) number[i] = (int)p.erased[4 * at + i];
    return ERASED;
  }
  if (op == GIVEN_MATRIX && p.matrix) {
    for (int i = 0; i < 6; i++) m[i] = p.matrix[6 * at + i];
  } else if (op == FLIP_X || op == FLIP_Y) {
    m[0] = op == FLIP_X ? -1.0 : 1.0; m[1] = 0.0; m[2] = op == FLIP_X ? (double)p.width : 0.0;
    m[3] = 0.0; m[4] = op == FLIP_Y ? -1.0 : 1.0; m[5] = op == FLIP_Y ? (double)p.height : 0.0;
  } else if (is_affine(op)) {
    turn = affine(op, p.arg[at], p.height, p.width, m);
  } else {
    return NOTHING;
  }
  if (turn == 0) return NOTHING;
  if (turn > 0) { number[0] = turn; return TURNED; }
  if (m[1] == 0.0 && m[3] == 0.0) return ALIGNED;
  number[0] = (int)fixed_point(m[0]); number[1] = (int)fixed_point(m[1]);
  number[2] = (int)fixed_point(m[2] + m[0] * 0.5 + m[1] * 0.5);
  number[3] = (int)fixed_point(m[3]); number[4] = (int)fixed_point(m[4]);
  number[5] = (int)fixed_point(m[5] + m[3] * 0.5 + m[4] * 0.5);
  return FIXED_POINT;
}

__device__ void copy_pixel(const MaskParams& p, bool inside, u64 from, u64 to) {
  if (p.bytes == 1) ((u8*)p.out)[to] = inside ? ((const u8*)p.masks)[from] : (u8)p.fill;
  else if (p.bytes == 2) ((u16*)p.out)[to] = inside ? ((const u16*)p.masks)[from] : (u16)p.fill;
  else if (p.bytes == 4) ((u32*)p.out)[to] = inside ? ((const u32*)p.masks)[from] : (u32)p.fill;
  else ((u64*)p.out)[to] = inside ? ((const u64*)p.masks)[from] : p.fill;
}

#ifndef THREADS
#define THREADS 1024
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) move_masks(const MaskParams p) {
  extern __shared__ short tables[];  // [S, W + H]: the source of every column and line, of steps along the axes
  __shared__ SharedSteps s;
  int tid = threadIdx.x, height = p.height, width = p.width, count = height * width;
  u64 image = blockIdx.x;
  for (int k = tid; k < p.steps; k += blockDim.x)
    s.kind[k] = prepare(p, image * p.steps + k, s.matrix[k], s.number[k]);
  __syncthreads();

  if (tid == 0) {
    s.used = 0;
    for (int k = p.steps - 1; k >= 0; k--) if (s.kind[k] != NOTHING) s.order[s.used++] = k;
  }
  if (p.has_tables)
    for (int item = tid; item < 2 * p.steps; item += blockDim.x) {
      int k = item / 2, down = item % 2, side = down ? height : width;
      if (s.kind[k] != ALIGNED) continue;
      short* table = tables + k * (width + height) + (down ? width : 0);
      double step = s.matrix[k][down ? 4 : 0], position = s.matrix[k][down ? 5 : 2] + step * 0.5;
      for (int i = 0; i < side; i++) { table[i] = (short)nearest_place(position, side); position += step; }
    }
  __syncthreads();

  for (int q = tid; q < count; q += blockDim.x) {
    int y = q / width, x = q - y * width;
    bool inside = true;
    for (int n = 0; n < s.used && inside; n++) {
      int k = s.order[n], kind = s.kind[k];
      const int* a = s.number[k];
      int source_x = x, source_y = y;
      if (kind == ALIGNED && p.has_tables) {
        const short* table = tables + k * (width + height);
        source_x = table[x]; source_y = table[width + y];
      } else if (kind == ALIGNED) {
        const double* m = s.matrix[k];
        source_x = nearest_place(accumulated(m[2] + m[0] * 0.5, m[0], x), width);
        source_y = nearest_place(accumulated(m[5] + m[4] * 0.5, m[4], y), height);
      } else if (kind == FIXED_POINT) {
        source_x = (a[2] + y * a[1] + x * a[0]) >> 16;
        source_y = (a[5] + y * a[4] + x * a[3]) >> 16;
      } else if (kind == TURNED) {
        source_x = a[0] == 1 ? width - 1 - y : a[0] == 2 ? width - 1 - x : y;
        source_y = a[0] == 1 ? x : a[0] == 2 ? height - 1 - y : height - 1 - x;
      } else if (x >= a[0] && y >= a[1] && x < a[2] && y < a[3]) {
        source_x = -1;
      }
      inside = source_x >= 0 && source_x < width && source_y >= 0 && source_y < height;
      x = source_x; y = source_y;
    }
    u64 source = inside ? (u64)y * width + x : 0, first = image * p.masks_per_image * count;
    for (int m = 0; m < p.masks_per_image; m++)
      copy_pixel(p, inside, first + (u64)m * count + source, first + (u64)m * count + q);
  }
}
